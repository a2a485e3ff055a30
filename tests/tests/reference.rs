//! Reference pages that are made from the code: they say what is true now, or this test says how to make them anew.
//!
//! `CRIT_BLESS=1` rewrites the pages.

use crit_core::model::Model;
use crit_core::model::arch::{FAMILIES, Family};
use crit_core::model::program::{Program, StateKind};
use crit_kernels::backend::cuda::plan::covers;
use crit_kernels::exec::{ExecOptions, Style, build};
use crit_tests::committed_case;
use std::collections::BTreeSet;
use std::path::Path;

const HEAD: &str = "\
# Architectures

Which model families run, what state a sequence of theirs holds, and which backends have every kernel they need. Made from the
families' own programs on the committed golden cases by `CRIT_BLESS=1 cargo test --release -p crit-tests --test reference`; a test
fails when it is out of date.

- **state**: *all* keeps keys and values of every position, *window* layers read back a limited number of them (a window or a
  chunk), *shared* ones those of an earlier layer. Other names are recurrent state of constant size, which goes back only to where it was saved.
- **long**: a sequence that grows past a limit is computed anew by other rotary angles.
- **draft**: the family's own drafting head, where a checkpoint has one.
- *exact* judges quality, *cpu* is the base engine; every op has its plain reference, which judges both. Both are proved against
  transformers on every case. *cuda* has a kernel for every op; which families were compared on a GPU says [its page](../cuda.md).

| architecture | `model_type` | ops | state | long | draft | exact | cpu | cuda |
|---|---|---|---|---|---|---|---|---|
";

/// The kinds of state in a program's step.
fn states(program: &Program) -> String {
    let mut kinds = BTreeSet::new();
    for state in program.step().uses.iter().flat_map(|place| &program.blocks[place.block].states) {
        kinds.insert(match &state.kind {
            StateKind::Kv { .. } if state.owner.is_some() => "shared",
            StateKind::Kv { window: Some(_), .. } => "window",
            StateKind::Kv { window: None, .. } => "all",
            StateKind::Recurrent { .. } => state.role,
        });
    }
    kinds.into_iter().collect::<Vec<_>>().join(", ")
}

/// Ops that not every decoder has.
fn ops(program: &Program) -> String {
    const USUAL: [&str; 6] = ["add", "embed", "kv_write", "linear", "select_rows", "rms_norm"];
    let all: BTreeSet<&str> =
        program.nodes(program.step()).map(|(_, node)| node.op.name()).filter(|name| !USUAL.contains(name)).collect();
    all.into_iter().map(|name| name.replace('_', " ")).collect::<Vec<_>>().join(", ")
}

fn mark(yes: bool) -> &'static str {
    if yes { "yes" } else { "–" }
}

fn row(family: &Family) -> String {
    let types = family.model_types.iter().map(|t| format!("`{t}`")).collect::<Vec<_>>().join(" ");
    let case = committed_case(family).unwrap_or_else(|| panic!("{} has no committed case", family.name));
    let model = Model::open(&case.path).unwrap_or_else(|e| panic!("{}: {e}", family.name));
    let program = &model.program;
    let runs = |style| mark(build(&model, ExecOptions::new(style, 64, 1)).is_ok());
    format!(
        "| {} | {types} | {} | {} | {} | {} | {} | {} | {} |\n",
        family.name,
        ops(program),
        states(program),
        mark(program.long_above().is_some()),
        mark(program.entry("draft").is_some()),
        runs(Style::Exact),
        runs(Style::Base),
        mark(covers(program).is_ok()),
    )
}

#[test]
fn the_table_of_architectures_is_what_the_families_say() {
    let made: String = std::iter::once(HEAD.to_string()).chain(FAMILIES.iter().map(row)).collect();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/architectures.md");
    if std::env::var_os("CRIT_BLESS").is_some() {
        std::fs::write(&page, &made).expect("the page can be written");
    }
    let found = std::fs::read_to_string(&page).unwrap_or_default();
    assert!(found == made, "docs/reference/architectures.md is out of date; CRIT_BLESS=1 makes it anew");
}
