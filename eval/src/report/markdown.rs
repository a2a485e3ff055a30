//! The report for agents and terminals: short, every figure with what it means.

use super::format::{ABSENT, bytes, conduct_word, gb_s, kld, or_absent, percent, precision, rate};
use super::{Evaluation, Phase};
use crate::kpi::Kpi;
use crate::profile::Profile;
use crate::quality::{PathResult, Quality};
use crate::speed::{Beyond, DirectSpeed, Honesty, ServedSpeed};
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
    evaluation.served.iter().filter_map(|served| served.beyond.as_ref()).for_each(|b| beyond(&mut out, b));
    evaluation.honesty.iter().for_each(|found| honesty(&mut out, found));
    evaluation.direct.iter().for_each(|direct| protocol(&mut out, direct));
    evaluation.profile.iter().for_each(|profile| waterfall(&mut out, profile));
    kpis(&mut out, &evaluation.kpis);
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

fn beyond(out: &mut String, beyond: &Beyond) {
    line(out, "\n## Beyond the suite (not in the means)\n");
    for p in &beyond.outside {
        let decode = or_absent(p.decode_tok_s.as_ref().map(|m| m.median), rate);
        line(out, &format!("- `{}`: {} tokens, decode {decode} tok/s", p.name, p.prompt_tokens));
    }
    if let Some(depth) = &beyond.full_context {
        let share = or_absent(depth.decode.as_ref().map(|s| s.share), percent);
        line(
            out,
            &format!(
                "- behind {} tokens of {}: decode {} tok/s ({share} of the ceiling), first token after {} ms",
                depth.depth,
                depth.context,
                rate(depth.decode_tok_s),
                rate(depth.first_token_ms)
            ),
        );
    }
    for one in &beyond.widths {
        let (total, each) = (rate(one.total_tok_s), rate(one.each_tok_s));
        line(out, &format!("- {} side by side: {total} tok/s together, {each} each", one.width));
    }
    beyond.notes.iter().for_each(|note| line(out, &format!("- {note}")));
}

fn honesty(out: &mut String, found: &Honesty) {
    let ratio = |value: Option<f64>| or_absent(value, |r| format!("{r:.2}"));
    line(
        out,
        &format!(
            "\nSecond run of a prompt against its first: decode × {}, reading × {} (no cache told); public against secret \
             prompts × {}.",
            ratio(found.repeat_ratio),
            ratio(found.unsaid_cache_ratio),
            ratio(found.public_ratio)
        ),
    );
    if let (Some(pace), Some(burst)) = (found.sustained_tok_s, found.burst_tok_s) {
        line(out, &format!("\nA minute without a pause: {} tok/s; after a rest: {}.", rate(pace), rate(burst)));
    }
}

fn waterfall(out: &mut String, profile: &Profile) {
    let us = |value: f64| format!("{} µs", rate(value));
    line(
        out,
        &format!(
            "\n## A decode step: {}, at least {} ({} steps)\n",
            us(profile.step_us),
            us(profile.floor_us),
            profile.steps
        ),
    );
    line(out, "| op | time | floor | share | bytes |");
    line(out, "|---|--:|--:|--:|--:|");
    for op in &profile.ops {
        let share = op.floor_us.filter(|_| op.time_us > 0.0).map(|floor| floor / op.time_us);
        let (floor, share) = (or_absent(op.floor_us, us), or_absent(share, percent));
        line(out, &format!("| {} | {} | {floor} | {share} | {} |", op.op, us(op.time_us), bytes(op.bytes)));
    }
    let outside = profile.step_us - profile.ops.iter().map(|op| op.time_us).sum::<f64>();
    line(out, &format!("| outside the ops | {} | | | |", us(outside.max(0.0))));
}

fn kpis(out: &mut String, kpis: &[Kpi]) {
    if kpis.is_empty() {
        return;
    }
    line(out, "\n## What the machine allows\n");
    line(out, "| use | ceiling | at the mode's fastest format | bound by |");
    line(out, "|---|--:|--:|---|");
    for kpi in kpis {
        let unit = if kpi.tok_s.is_some() { "tok/s" } else { "ms" };
        let value = kpi.tok_s.or(kpi.time_ms);
        let bound = super::format::bound(kpi.bound, None);
        let (value, fastest) = (or_absent(value, rate), rate(kpi.fastest_allowed));
        line(out, &format!("| {} | {value} {unit} | {fastest} {unit} | {bound} |", kpi.name));
    }
}

fn conduct(out: &mut String, quality: &Quality) {
    if quality.conduct.is_empty() {
        return;
    }
    line(out, "\n| what it generates | | |");
    line(out, "|---|---|---|");
    for check in &quality.conduct {
        line(out, &format!("| {} | {} | {} |", check.check, conduct_word(check.state), check.detail));
    }
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
    conduct(out, quality);
    if let Some(identity) = &quality.identity {
        line(
            out,
            &format!(
                "\nThe evaluator against known answers, {} rows: itself {:.0e} nats, formula off by {:.0e}, drawn tokens at z = \
                 {:.1}. The reference stands {:.0e} nats from itself.",
                identity.rows, identity.same_kld, identity.formula_error, identity.drawn_z, quality.reference_spread
            ),
        );
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
