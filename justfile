# Lists the recipes.
default:
    @just --list

# What CI runs.
ci:
    bash .ci/run

# The whole loop on the embedded model.
demo:
    cargo run --release -p crit -- demo

# All tests of the default budget.
test *ARGS:
    cargo test --release --workspace {{ARGS}}

# Formatting and lints as CI wants them.
lint:
    cargo fmt --all --check
    cargo clippy --release --workspace --all-targets -- -D warnings

# Licences and duplicate crates (needs cargo-deny).
deny:
    cargo deny check bans licenses sources

# Tests that take minutes: large goldens, long soaks. Needs CRIT_FIXTURES for the full golden sets.
long:
    CRIT_LONG=1 cargo test --release --workspace

# CPU kernel figures with their floors.
bench:
    cargo run --release -p crit-kernels --example bench
