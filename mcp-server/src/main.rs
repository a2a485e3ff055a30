//! crit: builds, measures and serves LLM inference engines for one checkpoint on one machine.

fn main() -> std::process::ExitCode {
    crit_faces::cli::main()
}
