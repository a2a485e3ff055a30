//! The report for agents and terminals: short, every figure with what it means.

use super::format::{ABSENT, gb_s, kld, or_absent, percent, precision, rate};
use super::{Evaluation, Phase};
use crate::quality::{PathResult, Quality};
use crate::speed::{DirectSpeed, ServedSpeed};
use crate::stats::Measured;
use std::fmt::Write;

/// Renders an evaluation as Markdown.
pub fn markdown(evaluation: &Evaluation) -> String {
    let mut out = String::new();
    let (overall, reasons) = evaluation.verdict();
    let subject = &evaluation.subject;
    line(&mut out, &format!("# {}: {} on {}", overall.word(), subject.candidate, subject.model));
    line(&mut out, &format!("\n{}", evaluation.headline()));
    for reason in &reasons {
        line(&mut out, &format!("- {reason}"));
    }
    scores(&mut out, evaluation);
    evaluation.served.iter().for_each(|served| prompts(&mut out, served));
    evaluation.direct.iter().for_each(|direct| protocol(&mut out, direct));
    evaluation.quality.iter().for_each(|quality| paths(&mut out, quality));
    machine(&mut out, evaluation);
    if !evaluation.notes.is_empty() {
        line(&mut out, "\n## Notes\n");
        evaluation.notes.iter().for_each(|note| line(&mut out, &format!("- {note}")));
    }
    out
}

fn line(out: &mut String, text: &str) {
    let _ = writeln!(out, "{text}");
}

fn scores(out: &mut String, evaluation: &Evaluation) {
    let Some(lead) = evaluation.lead() else { return };
    line(out, &format!("\n| {} | tok/s | ceiling | share | ceiling at the mode's fastest format | |", lead.way));
    line(out, "|---|--:|--:|--:|--:|---|");
    for (name, phase) in [("decode", &lead.decode), ("prefill", &lead.prefill)] {
        line(out, &score(name, phase));
    }
}

fn score(name: &str, phase: &Phase) -> String {
    format!(
        "| {name} | **{}** | {} | {} | {} | {} |",
        or_absent(phase.tok_s, rate),
        or_absent(phase.ceiling_tok_s(), rate),
        or_absent(phase.share, percent),
        or_absent(phase.fastest_tok_s(), rate),
        phase.bound.as_deref().unwrap_or("")
    )
}

fn range(measured: Option<&Measured>) -> String {
    measured.map_or_else(
        || ABSENT.into(),
        |m| format!("{} ({} to {}, n = {})", rate(m.median), rate(m.low), rate(m.high), m.samples.len()),
    )
}

fn prompts(out: &mut String, served: &ServedSpeed) {
    line(out, &format!("\n## Speed by prompt ({})\n", served.suite));
    line(out, "| prompt | tokens | first token ms | prefill tok/s | decode tok/s | tokens/pass | decode share |");
    line(out, "|---|--:|--:|--:|--:|--:|--:|");
    for p in &served.prompts {
        let row = format!(
            "| {} | {} | {} | {} | {} | {} | {} |",
            p.name,
            p.prompt_tokens,
            or_absent(p.first_token_ms.as_ref().map(|m| m.median), rate),
            or_absent(p.prefill_tok_s.as_ref().map(|m| m.median), rate),
            range(p.decode_tok_s.as_ref()),
            or_absent(p.tokens_per_pass, rate),
            or_absent(p.decode.as_ref().map(|s| s.share), percent)
        );
        line(out, &row);
    }
    for skipped in &served.skipped {
        line(out, &format!("\nSKIPPED `{}`: {}. The means leave it out.", skipped.name, skipped.why));
    }
    for p in &served.prompts {
        p.notes.iter().for_each(|note| line(out, &format!("\n`{}`: {note}.", p.name)));
    }
}

fn protocol(out: &mut String, direct: &DirectSpeed) {
    line(
        out,
        &format!(
            "\n## Through the engine protocol (-p {} -n {} -d {})\n",
            direct.prompt_tokens, direct.generate_tokens, direct.depth
        ),
    );
    line(out, "| | tok/s | ceiling | share |\n|---|--:|--:|--:|");
    let row = |name, measured: &Option<Measured>, ceiling, share| {
        let (ceiling, share) = (or_absent(ceiling, rate), or_absent(share, percent));
        format!("| {name} | {} | {ceiling} | {share} |", range(measured.as_ref()))
    };
    line(out, &row("prefill", &direct.prefill, direct.prefill_ceiling_tok_s, direct.prefill_share));
    line(out, &row("decode", &direct.decode, direct.decode_ceiling_tok_s, direct.decode_share));
    direct.notes.iter().for_each(|note| line(out, &format!("\n{note}.")));
}

fn paths(out: &mut String, quality: &Quality) {
    line(
        out,
        &format!(
            "\n## Quality: {} in mode `{}`, worst path `{}`\n",
            quality.verdict.word(),
            quality.mode.name(),
            quality.worst_path
        ),
    );
    line(
        out,
        "| path | rows | mean KLD | 99.9 % | perplexity (model) | same top | near ties | hard flips | bad rows |",
    );
    line(out, "|---|--:|--:|--:|--:|--:|--:|--:|--:|");
    quality.paths.iter().for_each(|path| line(out, &path_row(path)));
    for skipped in &quality.skipped {
        line(out, &format!("\nSKIPPED `{}`: {}.", skipped.path, skipped.why));
    }
}

fn path_row(path: &PathResult) -> String {
    let ppl = path.candidate_ppl.zip(path.reference_ppl);
    format!(
        "| {} | {} | {} | {} | {} | {} | {} | {} | {} |",
        path.path,
        path.rows,
        or_absent(path.kld.map(|k| k.mean), kld),
        or_absent(path.kld.map(|k| k.p999), kld),
        ppl.map_or_else(|| ABSENT.into(), |(ours, model)| format!("{ours:.3} ({model:.3})")),
        or_absent(path.same_top_share, |s| format!("{:.1} %", s * 100.0)),
        path.near_tie_flips,
        path.hard_flips,
        path.bad_rows
    )
}

fn machine(out: &mut String, evaluation: &Evaluation) {
    let Some(probe) = &evaluation.probe else { return };
    let machine = &probe.machine;
    line(out, &format!("\n## Machine: {}, {} cores\n", machine.cpu, machine.cores));
    let levels: Vec<String> =
        probe.by_level().into_iter().map(|p| format!("{} {} GB/s", p.level.label(), gb_s(p.bytes_s.median))).collect();
    line(out, &format!("Reads with all threads: {}.", levels.join(", ")));
    let rates: Vec<String> = probe
        .limits(machine.cores)
        .arithmetic
        .iter()
        .map(|a| format!("{} {} Gop/s", precision(a.precision), rate(a.ops_s / 1e9)))
        .collect();
    line(out, &format!("Computes: {}.", rates.join(", ")));
    for reason in &probe.unstable {
        line(out, &format!("\nUNSTABLE: {reason}."));
    }
}
