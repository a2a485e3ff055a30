//! `crit demo`: the whole loop on the embedded model, two candidates, the better one sealed.

use super::call;
use super::printer::Printer;
use crit_core::error::ErrorKind;
use crit_records::verify::{Options, verify};
use crit_tools::{Context, ToolError, embedded};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::Instant;

/// Arguments: only the global ones.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// A candidate of the demo as its table shows it.
struct Shown {
    name: String,
    eval: Value,
    ablation: Option<Value>,
}

/// Runs the loop in the workspace.
///
/// # Errors
/// A step failed.
pub fn run(_: &Args, context: &Context, printer: &Printer) -> Result<ExitCode, ToolError> {
    let begun = Instant::now();
    let workspace = context.workspace()?;
    workspace.prepare()?;
    let model = embedded::unpack(workspace)?;
    let step = |title: &str, tool: &str, arguments: Value| -> Result<Value, ToolError> {
        printer.note(&format!("{:>5.1} s  {title}", begun.elapsed().as_secs_f64()));
        call::call(tool, context, &printer.calm(), &arguments, false)
    };
    let recon = step("recon: machine, model, ceilings", "recon", json!({"model": model}))?;
    let mut shown = Vec::new();
    let plugins: Vec<Value> = ["ngram_drafter", "prefix_cache"].iter().map(|name| json!({"name": name})).collect();
    for (name, hypothesis, plugins) in [
        ("base", "the base engine, no plugins: the starting point", Vec::new()),
        ("plugins", "texts repeat themselves: drafting from n-grams and keeping prefixes saves passes", plugins),
    ] {
        shown.push(candidate(&step, name, hypothesis, plugins)?);
    }
    let best = lead(&shown)?;
    let digest = best.eval["candidate"].clone();
    let sealed = match step("seal: decision, selection, seal", "seal", json!({"candidate": digest})) {
        // Two that are nearly as fast are measured again in pairs, and the faster one may be the other.
        Err(error) if error.kind == ErrorKind::Check => {
            let other = shown.iter().map(|one| &one.eval["candidate"]).find(|other| **other != digest).cloned();
            let reason = "measured again in pairs it is the faster one";
            step("seal: the other, faster in pairs", "seal", json!({"candidate": other, "reason": reason}))?
        }
        sealed => sealed?,
    };
    let report = verify(workspace.root(), &Options { run: None, held: Vec::new() })?;
    let output = json!({
        "sealed": sealed["candidate"],
        "name": sealed["name"],
        "run": sealed["run"],
        "candidates": shown.iter().map(row).collect::<Vec<_>>(),
        "ablation": shown.iter().find_map(|one| one.ablation.as_ref()).map(|ablation| ablation["rows"].clone()),
        "ceilings": recon["ceilings"],
        "verified": {"passed": report.passed(), "checks": report.checks},
        "wall_s": begun.elapsed().as_secs(),
        "serve": sealed["serve"],
    });
    match printer.json {
        true => printer.output(&output)?,
        false => printer.out(&table(&output))?,
    }
    Ok(if report.passed() { ExitCode::SUCCESS } else { ExitCode::from(ErrorKind::Check.exit_code()) })
}

fn candidate(
    step: &dyn Fn(&str, &str, Value) -> Result<Value, ToolError>,
    name: &str,
    hypothesis: &str,
    plugins: Vec<Value>,
) -> Result<Shown, ToolError> {
    let several = plugins.len() > 1;
    step(&format!("{name}: plan"), "plan", json!({"hypothesis": hypothesis, "plugins": plugins}))?;
    let built = step(&format!("{name}: build"), "build_candidate", json!({"name": name}))?;
    let which = json!({"candidate": built["candidate"]});
    let smoke = step(&format!("{name}: smoke"), "smoke", which.clone())?;
    if smoke["passed"] != true {
        return Err(ToolError::new(
            ErrorKind::Check,
            format!("candidate {name} did not pass smoke: {}", smoke["cases"]),
        )
        .with_hint("look at its job: `crit job list`"));
    }
    let ablation = match several {
        true => Some(step(&format!("{name}: ablate, a row a plugin"), "ablate", which.clone())?),
        false => None,
    };
    let mut arguments = which;
    // Less than a real evaluation, so that the demo is over soon; what it leaves out is length, no prompt and no path.
    arguments["generate_tokens"] = json!(32);
    arguments["repeats"] = json!(2);
    arguments["quality_tokens"] = json!(96);
    let eval = step(&format!("{name}: eval: speed through the server, quality on every path"), "eval", arguments)?;
    Ok(Shown { name: name.into(), eval, ablation })
}

/// The candidate with the highest decode speed among those whose quality passed.
fn lead(shown: &[Shown]) -> Result<&Shown, ToolError> {
    let fit = shown.iter().filter(|one| one.eval["quality"]["verdict"] == "pass");
    let speed = |one: &Shown| one.eval["decode"]["tok_s"].as_f64();
    let best = fit.filter_map(|one| Some((speed(one)?, one))).max_by(|a, b| a.0.total_cmp(&b.0));
    best.map(|(_, one)| one).ok_or_else(|| {
        ToolError::new(ErrorKind::Check, "no candidate of the demo passed quality")
            .with_hint("`crit run status` says why")
    })
}

fn row(one: &Shown) -> Value {
    let eval = &one.eval;
    json!({"name": one.name, "candidate": eval["candidate"], "verdict": eval["verdict"], "decode": eval["decode"],
        "prefill": eval["prefill"], "quality": eval["quality"], "report": eval["report_html"]})
}

fn table(output: &Value) -> String {
    let number = |value: &Value, digits: usize| match value.as_f64() {
        Some(value) => format!("{value:.digits$}"),
        None => "–".into(),
    };
    let percent = |value: &Value| value.as_f64().map_or("–".into(), |share| format!("{:.0} %", share * 100.0));
    let mut out = format!(
        "\n{:<10} {:>14} {:>14} {:>7} {:>14} {:>12}  {}\n",
        "candidate", "decode tok/s", "ceiling tok/s", "share", "prefill tok/s", "KLD nats", "verdict"
    );
    for row in output["candidates"].as_array().into_iter().flatten() {
        let kld = row["quality"]["mean_kld"].as_f64().map_or("–".into(), |kld| format!("{kld:.1e}"));
        out.push_str(&format!(
            "{:<10} {:>14} {:>14} {:>7} {:>14} {:>12}  {}\n",
            row["name"].as_str().unwrap_or_default(),
            number(&row["decode"]["tok_s"], 1),
            number(&row["decode"]["ceiling_tok_s"], 1),
            percent(&row["decode"]["share"]),
            number(&row["prefill"]["tok_s"], 1),
            kld,
            row["verdict"].as_str().unwrap_or_default(),
        ));
    }
    if let Some(rows) = output["ablation"].as_array().filter(|rows| !rows.is_empty()) {
        out.push_str(&format!("\n{:<16} {:<7} {:>9}  {}\n", "plugin", "variant", "change", "outcome"));
        for row in rows {
            let change = row["delta_percent"].as_f64().map_or("–".into(), |delta| format!("{delta:+.1} %"));
            let text = |name: &str| row[name].as_str().unwrap_or_default().to_string();
            out.push_str(&format!("{:<16} {:<7} {change:>9}  {}\n", text("plugin"), text("variant"), text("outcome")));
        }
    }
    out.push_str(&format!(
        "\nsealed: {} ({})\nverified: {} checks, {}\nserve it: {}\n",
        output["name"].as_str().unwrap_or_default(),
        output["sealed"].as_str().unwrap_or_default(),
        output["verified"]["checks"],
        if output["verified"]["passed"] == true { "all hold" } else { "BROKEN" },
        output["serve"].as_str().unwrap_or_default(),
    ));
    out
}
