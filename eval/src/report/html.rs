//! The page for people: one file, no network, light and dark.

use super::format::{ABSENT, bytes, conduct_word, gb_s, kld, or_absent, percent, rate};
use super::plots::{self, escape};
use super::{Evaluation, Overall, Phase};
use crate::kpi::Kpi;
use crate::probe::Probe;
use crate::profile::Profile;
use crate::quality::{ConductState, PathResult, Quality, Verdict, gate};
use crate::speed::served::ServedSampling;
use crate::speed::{Beyond, DirectSpeed, ServedSpeed};
use crate::stats::Measured;
use std::fmt::Write;

const STYLE: &str = include_str!("style.css");

/// Renders an evaluation as one self-contained page.
pub fn html(evaluation: &Evaluation) -> String {
    let (overall, reasons) = evaluation.verdict();
    let subject = &evaluation.subject;
    let title = format!("{} on {}", subject.candidate, subject.model);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width,initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light \
         dark\">\n<title>{}: {}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n",
        overall.word(),
        escape(&title)
    );
    header(&mut page, evaluation, overall, &reasons);
    cards(&mut page, evaluation, overall);
    evaluation.served.iter().for_each(|served| served_section(&mut page, served));
    evaluation.served.iter().filter_map(|served| served.beyond.as_ref()).for_each(|b| beyond_section(&mut page, b));
    evaluation.direct.iter().for_each(|direct| direct_section(&mut page, direct));
    evaluation.profile.iter().for_each(|profile| waterfall_section(&mut page, profile, evaluation.probe.as_ref()));
    kpi_section(&mut page, &evaluation.kpis);
    evaluation.quality.iter().for_each(|quality| quality_section(&mut page, quality));
    machine_section(&mut page, evaluation);
    facts_section(&mut page, evaluation);
    page.push_str("</main>\n</body>\n</html>\n");
    page
}

fn header(page: &mut String, evaluation: &Evaluation, overall: Overall, reasons: &[String]) {
    let subject = &evaluation.subject;
    let _ = write!(
        page,
        "<p class=\"over\">crit evaluation</p>\n<h1>{} <small>on {}</small><span class=\"verdict \
         {}\">{}</span></h1>\n<p class=\"lead\">{}</p>\n",
        escape(&subject.candidate),
        escape(&subject.model),
        overall.word().to_lowercase(),
        overall.word(),
        escape(&evaluation.headline())
    );
    if !reasons.is_empty() {
        let items: String = reasons.iter().map(|reason| format!("<li>{}</li>", escape(reason))).collect();
        let _ = writeln!(page, "<ul class=\"reasons\">{items}</ul>");
    }
}

fn cards(page: &mut String, evaluation: &Evaluation, overall: Overall) {
    page.push_str("<div class=\"cards\">\n");
    if let Some(lead) = evaluation.lead() {
        speed_card(page, "Decode", &lead.decode, overall);
        speed_card(page, "Prefill", &lead.prefill, overall);
    }
    if let Some(quality) = &evaluation.quality {
        quality_card(page, quality);
    }
    page.push_str("</div>\n");
}

fn speed_card(page: &mut String, name: &str, phase: &Phase, overall: Overall) {
    let (class, fill) = match overall {
        Overall::Pass => ("card", "fill"),
        Overall::Unstable => ("card", "fill-warn"),
        // Without a quality pass a speed is no score.
        _ => ("card muted", "fill-warn"),
    };
    let mut below = match (phase.share, phase.ceiling_tok_s()) {
        (Some(share), Some(ceiling)) => format!(
            "<b>{}</b> of the {} tok/s this machine allows, {}.",
            percent(share),
            rate(ceiling),
            escape(phase.bound.as_deref().unwrap_or("bound unknown"))
        ),
        _ => "No ceiling was computed.".into(),
    };
    if let Some(fastest) = phase.fastest_tok_s() {
        let _ = write!(below, " In the fastest format the mode allows: {} tok/s.", rate(fastest));
    }
    let _ = writeln!(
        page,
        "<div class=\"{class}\"><h2>{name}</h2><div class=\"big\">{}<span>tok/s</span></div>{}<p>{below}</p></div>",
        or_absent(phase.tok_s, rate),
        plots::gauge(phase.share, fill)
    );
}

fn quality_card(page: &mut String, quality: &Quality) {
    let limit = quality.mode.demands().mean_kld;
    let worst = gate::worst(&quality.paths);
    let mean = worst.and_then(|path| path.kld).map(|kld| kld.mean);
    let fill = if quality.verdict == Verdict::Pass { "fill" } else { "fill-stop" };
    let same_top = or_absent(worst.and_then(|path| path.same_top_share), |s| format!("{:.1} %", s * 100.0));
    let _ = writeln!(
        page,
        "<div class=\"card\"><h2>Distance from the model</h2><div \
         class=\"big\">{}<span>nats</span></div>{}<p>Worst of {} paths: <b>{}</b>. Mode <b>{}</b> allows {limit}; same \
         first choice in {same_top} of rows.</p></div>",
        or_absent(mean, kld),
        plots::gauge(mean.map(|mean| mean / limit), fill),
        quality.paths.len(),
        escape(&quality.worst_path.replace('_', " ")),
        quality.mode.name()
    );
}

fn cell(text: &str) -> String {
    format!("<td>{}</td>", escape(text))
}

fn table(page: &mut String, head: &[&str], rows: impl Iterator<Item = String>) {
    let head: String = head.iter().map(|name| format!("<th>{}</th>", escape(name))).collect();
    let body: String = rows.collect();
    let _ = writeln!(page, "<div class=\"scroll\"><table><tr>{head}</tr>{body}</table></div>");
}

fn with_range(measured: Option<&Measured>) -> String {
    measured.map_or_else(
        || ABSENT.into(),
        |m| {
            if m.samples.len() < 2 {
                return rate(m.median);
            }
            format!("{} ({}–{})", rate(m.median), rate(m.low), rate(m.high))
        },
    )
}

fn served_section(page: &mut String, served: &ServedSpeed) {
    let sampling = match served.sampling {
        ServedSampling::Model => "sampled at the model's own settings",
        ServedSampling::Greedy => "greedy",
    };
    let repeats = served.prompts.iter().map(|p| p.generated_tokens.len()).max().unwrap_or(0);
    let _ = writeln!(
        page,
        "<section><h2>Speed by prompt</h2><p>Through the running server, {sampling}, the engine decoding its own \
         output. Each bar lies on the track of its own ceiling; each dot is one of {repeats} repeats.</p>{}",
        plots::prompts(served)
    );
    let head = ["prompt", "tokens", "first token, ms", "prefill, tok/s", "prefill share", "decode, tok/s"];
    let rows = served.prompts.iter().map(|p| {
        let cells = [
            p.name.replace('_', " "),
            p.prompt_tokens.to_string(),
            with_range(p.first_token_ms.as_ref()),
            with_range(p.prefill_tok_s.as_ref()),
            or_absent(p.prefill.as_ref().map(|s| s.share), percent),
            with_range(p.decode_tok_s.as_ref()),
        ];
        format!("<tr>{}</tr>", cells.iter().map(|c| cell(c)).collect::<String>())
    });
    table(page, &head, rows);
    for skipped in &served.skipped {
        let name = escape(&skipped.name.replace('_', " "));
        let _ = writeln!(page, "<p class=\"note\">SKIPPED <b>{name}</b>: {}.</p>", escape(&skipped.why));
    }
    for p in &served.prompts {
        for note in &p.notes {
            let name = escape(&p.name.replace('_', " "));
            let _ = writeln!(page, "<p class=\"note\"><b>{name}</b>: {}.</p>", escape(note));
        }
    }
    page.push_str("</section>\n");
}

fn direct_section(page: &mut String, direct: &DirectSpeed) {
    let _ = writeln!(
        page,
        "<section><h2>Straight through the engine</h2><p>Random prompts over the engine protocol, comparable with \
         llama-bench: -p {} -n {} -d {}.</p>",
        direct.prompt_tokens, direct.generate_tokens, direct.depth
    );
    let row = |name: &str, measured: Option<&Measured>, ceiling, share| {
        let cells = [name.into(), with_range(measured), or_absent(ceiling, rate), or_absent(share, percent)];
        format!("<tr>{}</tr>", cells.iter().map(|c: &String| cell(c)).collect::<String>())
    };
    let rows = [
        row("prefill", direct.prefill.as_ref(), direct.prefill_ceiling_tok_s, direct.prefill_share),
        row("decode", direct.decode.as_ref(), direct.decode_ceiling_tok_s, direct.decode_share),
    ];
    table(page, &["", "tok/s", "ceiling", "share"], rows.into_iter());
    for note in &direct.notes {
        let _ = writeln!(page, "<p class=\"note\">{}.</p>", escape(note));
    }
    page.push_str("</section>\n");
}

fn beyond_section(page: &mut String, beyond: &Beyond) {
    page.push_str(
        "<section><h2>Beyond the suite</h2><p>Other languages and code, secret variants drawn after the candidate was \
         frozen, a full context, many requests. None of it is in the score.</p>",
    );
    if !beyond.widths.is_empty() {
        page.push_str(&plots::widths(&beyond.widths));
    }
    let rows = beyond.outside.iter().map(|p| {
        let cells = [
            p.name.replace('_', " "),
            p.prompt_tokens.to_string(),
            with_range(p.first_token_ms.as_ref()),
            with_range(p.decode_tok_s.as_ref()),
        ];
        format!("<tr>{}</tr>", cells.iter().map(|c| cell(c)).collect::<String>())
    });
    let depth = beyond.full_context.iter().map(|depth| {
        let cells =
            ["full context".into(), depth.depth.to_string(), rate(depth.first_token_ms), rate(depth.decode_tok_s)];
        format!("<tr>{}</tr>", cells.iter().map(|c| cell(c)).collect::<String>())
    });
    table(page, &["prompt", "tokens", "first token, ms", "decode, tok/s"], rows.chain(depth));
    page.push_str("</section>\n");
}

fn waterfall_section(page: &mut String, profile: &Profile, probe: Option<&Probe>) {
    let _ = writeln!(
        page,
        "<section><h2>Where a decode step goes</h2><p>From the step the evaluator timed ({} µs) down to the least it could \
         take ({} µs): what each op spends beyond its own floor.</p>{}",
        rate(profile.step_us),
        rate(profile.floor_us),
        plots::waterfall(profile)
    );
    let rows = profile.ops.iter().map(|op| {
        let share = op.floor_us.filter(|_| op.time_us > 0.0).map(|floor| floor / op.time_us);
        let cells = [
            op.op.replace('_', " "),
            rate(op.time_us),
            or_absent(op.floor_us, rate),
            or_absent(share, percent),
            bytes(op.bytes),
        ];
        format!("<tr>{}</tr>", cells.iter().map(|c| cell(c)).collect::<String>())
    });
    table(page, &["op", "time, µs", "floor, µs", "share", "bytes"], rows);
    if let Some(probe) = probe {
        page.push_str(&plots::roofline(profile, probe));
    }
    page.push_str("</section>\n");
}

fn kpi_section(page: &mut String, kpis: &[Kpi]) {
    if kpis.is_empty() {
        return;
    }
    page.push_str(
        "<section><h2>What the machine allows</h2><p>The least time of the passes each use needs, as this engine stores its \
         bytes, and at the fastest format the mode allows.</p>",
    );
    let rows = kpis.iter().map(|kpi| {
        let unit = if kpi.tok_s.is_some() { "tok/s" } else { "ms" };
        let value = or_absent(kpi.tok_s.or(kpi.time_ms), rate);
        let cells = [
            kpi.name.replace('_', " "),
            format!("{value} {unit}"),
            format!("{} {unit}", rate(kpi.fastest_allowed)),
            super::format::bound(kpi.bound, None),
        ];
        format!("<tr>{}</tr>", cells.iter().map(|c| cell(c)).collect::<String>())
    });
    table(page, &["use", "ceiling", "at the mode's fastest format", ""], rows);
    page.push_str("</section>\n");
}

fn quality_section(page: &mut String, quality: &Quality) {
    let texts: Vec<String> = quality.texts.iter().map(|(name, tokens)| format!("{name} {tokens}")).collect();
    let _ = writeln!(
        page,
        "<section><h2>Quality by path</h2><p>Every way to reach a logit, against the exact reference over the whole \
         vocabulary: mean KL divergence (dot), its 95 % interval (bar) and where 99.9 % of rows lie below (ring). The \
         worst path is the score. Tokens: {}.</p>{}",
        escape(&texts.join(", ")),
        plots::paths(quality)
    );
    let head = [
        "path",
        "rows",
        "mean KLD",
        "99.9 %",
        "perplexity",
        "model's",
        "same top",
        "near ties",
        "hard flips",
        "bad rows",
    ];
    table(page, &head, quality.paths.iter().map(|path| path_row(path, path.path == quality.worst_path)));
    for skipped in &quality.skipped {
        let name = escape(&skipped.path.replace('_', " "));
        let _ = writeln!(page, "<p class=\"note\">SKIPPED <b>{name}</b>: {}.</p>", escape(&skipped.why));
    }
    if !quality.conduct.is_empty() {
        let rows = quality.conduct.iter().map(|check| {
            let class = if check.state == ConductState::Fail { " class=\"no\"" } else { "" };
            let word = conduct_word(check.state);
            let detail = escape(&check.detail);
            format!("<tr>{}<td{class}>{word}</td><td class=\"wide\">{detail}</td></tr>", cell(&check.check))
        });
        table(page, &["what it generates", "", ""], rows);
    }
    page.push_str("</section>\n");
}

fn path_row(path: &PathResult, worst: bool) -> String {
    let cells = [
        path.path.replace('_', " "),
        path.rows.to_string(),
        or_absent(path.kld.map(|k| k.mean), kld),
        or_absent(path.kld.map(|k| k.p999), kld),
        or_absent(path.candidate_ppl, |p| format!("{p:.3}")),
        or_absent(path.reference_ppl, |p| format!("{p:.3}")),
        or_absent(path.same_top_share, |s| format!("{:.1} %", s * 100.0)),
        path.near_tie_flips.to_string(),
        path.hard_flips.to_string(),
    ];
    let cells: String = cells.iter().map(|c| cell(c)).collect();
    let bad = if path.bad_rows > 0 { " class=\"no\"" } else { "" };
    format!("<tr{}>{cells}<td{bad}>{}</td></tr>", if worst { " class=\"worst\"" } else { "" }, path.bad_rows)
}

fn machine_section(page: &mut String, evaluation: &Evaluation) {
    let Some(probe) = &evaluation.probe else { return };
    let machine = &probe.machine;
    let levels: Vec<String> =
        probe.by_level().into_iter().map(|p| format!("{} {} GB/s", p.level.label(), gb_s(p.bytes_s.median))).collect();
    let _ = writeln!(
        page,
        "<section><h2>What the machine can do</h2><p>Measured, not looked up: {}. {}</p><div \
         class=\"two\"><div>{}</div><div>{}</div></div>",
        escape(&levels.join(", ")),
        if probe.unstable.is_empty() {
            "It was steady meanwhile.".to_string()
        } else {
            format!("<b>UNSTABLE</b>: {}.", escape(&probe.unstable.join("; ")))
        },
        plots::bandwidth(probe, evaluation.subject.decode_pass_bytes),
        plots::arithmetic(probe)
    );
    let mut facts = vec![
        ("processor", format!("{}, {} cores", machine.cpu, machine.cores)),
        ("instruction sets", machine.flags.join(" ")),
        ("memory", bytes(machine.memory_bytes)),
        ("kernel", machine.kernel.clone()),
    ];
    facts.extend(machine.governor.clone().map(|governor| ("governor", governor)));
    if machine.virtual_machine {
        facts.push(("virtual machine", "yes: clocks and neighbours are out of sight".into()));
    }
    page.push_str("<div class=\"scroll\">");
    definition_list(page, &facts);
    page.push_str("</div></section>\n");
}

fn definition_list(page: &mut String, facts: &[(&str, String)]) {
    let items: String =
        facts.iter().map(|(name, value)| format!("<dt>{}</dt><dd>{}</dd>", escape(name), escape(value))).collect();
    let _ = writeln!(page, "<dl class=\"facts\">{items}</dl>");
}

fn facts_section(page: &mut String, evaluation: &Evaluation) {
    let subject = &evaluation.subject;
    page.push_str("<section><h2>What was measured</h2><p></p>");
    let mut facts = vec![("engine", format!("{} on {}, {} threads", subject.engine, subject.target, subject.threads))];
    let mut add = |name, value: Option<String>| facts.extend(value.map(|value| (name, value)));
    add("plugins", (!subject.plugins.is_empty()).then(|| subject.plugins.join(", ")));
    add("architecture", Some(subject.arch.clone()));
    add("context", Some(format!("{} tokens", subject.max_context)));
    add("memory held", subject.memory_bytes.map(bytes));
    add("candidate", subject.candidate_digest.clone());
    add("checkpoint", subject.checkpoint_digest.clone());
    add("speed suite", evaluation.served.as_ref().map(|s| format!("{} {}", s.suite, s.suite_digest)));
    add("reference", evaluation.quality.as_ref().map(|q| q.reference.clone()));
    add("evaluation", Some(format!("version {}", evaluation.eval_version)));
    definition_list(page, &facts);
    for note in &evaluation.notes {
        let _ = writeln!(page, "<p class=\"note\">{}</p>", escape(note));
    }
    page.push_str("</section>\n");
}
