//! The plots of the page, as SVG text that takes its colours from the page's style.

use super::format::{bytes, gb_s, kld, percent, rate};
use crate::ceiling::Share;
use crate::probe::Probe;
use crate::profile::Profile;
use crate::quality::{PathResult, Quality};
use crate::speed::ServedSpeed;
use crate::speed::beyond::WidthSpeed;
use crate::stats::Measured;
use std::fmt::Write;

const WIDTH: f64 = 720.0;

/// Text inside HTML or SVG.
pub(super) fn escape(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, c| {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
        out
    })
}

struct Svg {
    body: String,
    height: f64,
}

impl Svg {
    fn new(height: f64) -> Self {
        Self { body: String::new(), height }
    }

    fn rect(&mut self, class: &str, (x, y): (f64, f64), (w, h): (f64, f64)) {
        let w = w.max(0.0);
        let _ = write!(
            self.body,
            r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{w:.1}" height="{h:.1}" rx="{:.1}"/>"#,
            (h / 2.0).min(4.0)
        );
    }

    fn line(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        let _ = write!(self.body, r#"<line class="{class}" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#);
    }

    fn dot(&mut self, class: &str, (x, y): (f64, f64), r: f64, title: &str) {
        let _ = write!(
            self.body,
            r#"<circle class="{class}" cx="{x:.1}" cy="{y:.1}" r="{r}"><title>{}</title></circle>"#,
            escape(title)
        );
    }

    fn text(&mut self, class: &str, (x, y): (f64, f64), text: &str) {
        let _ = write!(self.body, r#"<text class="{class}" x="{x:.1}" y="{y:.1}">{}</text>"#, escape(text));
    }

    fn path(&mut self, class: &str, points: &[(f64, f64)]) {
        let commands: Vec<String> = points
            .iter()
            .enumerate()
            .map(|(i, (x, y))| format!("{}{x:.1} {y:.1}", if i == 0 { "M" } else { "L" }))
            .collect();
        let _ = write!(self.body, r#"<path class="{class}" d="{}"/>"#, commands.join(""));
    }

    fn finish(self, label: &str) -> String {
        format!(
            r#"<svg viewBox="0 0 {WIDTH} {:.0}" role="img" aria-label="{}">{}</svg>"#,
            self.height,
            escape(label),
            self.body
        )
    }
}

/// Decode speed of each prompt on the track of its own ceiling, every sample a dot.
pub(super) fn prompts(served: &ServedSpeed) -> String {
    const ROW: f64 = 46.0;
    let (left, right) = (150.0, 590.0);
    let mut svg = Svg::new(served.prompts.len() as f64 * ROW + 8.0);
    for (i, prompt) in served.prompts.iter().enumerate() {
        let y = i as f64 * ROW + 14.0;
        svg.text("label", (0.0, y + 11.0), &prompt.name.replace('_', " "));
        svg.text("faint", (0.0, y + 26.0), &format!("{} tokens", prompt.prompt_tokens));
        let Some(decode) = &prompt.decode_tok_s else {
            svg.text("faint", (left, y + 11.0), "too short to time");
            continue;
        };
        let top = scale_top(decode, prompt.decode.as_ref());
        let x = |tok_s: f64| left + (right - left) * tok_s / top;
        let ceiling = prompt.decode.as_ref().map(|share| share.ceiling_tok_s);
        svg.rect("track", (left, y), (x(ceiling.unwrap_or(top)) - left, 16.0));
        svg.rect("fill", (left, y), (x(decode.median) - left, 16.0));
        for sample in &decode.samples {
            svg.dot("sample", (x(*sample), y + 8.0), 2.5, &format!("{} tok/s", rate(*sample)));
        }
        svg.text("value", (right + 12.0, y + 12.0), &format!("{} tok/s", rate(decode.median)));
        let below = match &prompt.decode {
            Some(share) => format!("{} of {} tok/s", percent(share.share), rate(share.ceiling_tok_s)),
            None => "no ceiling".into(),
        };
        svg.text("faint", (left, y + 30.0), &below);
        if let Some(per_pass) = prompt.tokens_per_pass.filter(|n| *n > 1.005) {
            svg.text("faint", (right + 12.0, y + 28.0), &format!("{per_pass:.2} tokens a pass"));
        }
    }
    svg.finish("Decode speed of each prompt beside its ceiling")
}

fn scale_top(decode: &Measured, share: Option<&Share>) -> f64 {
    let best = decode.samples.iter().copied().fold(decode.median, f64::max);
    best.max(share.map_or(0.0, |share| share.ceiling_tok_s)).max(f64::MIN_POSITIVE)
}

/// Mean divergence of each path on a logarithmic scale, its interval, its 99.9 % point, and the mode's limit.
pub(super) fn paths(quality: &Quality) -> String {
    const ROW: f64 = 30.0;
    let (left, right) = (150.0, 620.0);
    let limit = quality.mode.demands().mean_kld;
    let axis = Decades::over(
        quality.paths.iter().filter_map(|p| p.kld).flat_map(|k| [k.mean, k.p999]).chain([limit]),
        (left, right),
    );
    let bottom = quality.paths.len() as f64 * ROW + 24.0;
    let mut svg = Svg::new(bottom + 22.0);
    for (x, label) in axis.ticks() {
        svg.line("grid", (x, 20.0), (x, bottom));
        svg.text("tick middle", (x, bottom + 16.0), &label);
    }
    for (i, path) in quality.paths.iter().enumerate() {
        path_row(&mut svg, &axis, path, 36.0 + i as f64 * ROW, path.path == quality.worst_path);
    }
    let x = axis.x(limit);
    svg.line("limit", (x, 16.0), (x, bottom));
    svg.text("limit-label middle", (x, 11.0), &format!("{} allows {limit}", quality.mode.name()));
    svg.finish("Divergence from the model by path")
}

fn path_row(svg: &mut Svg, axis: &Decades, path: &PathResult, y: f64, worst: bool) {
    let (left, right) = axis.span;
    svg.text(if worst { "label strong" } else { "label" }, (0.0, y + 4.0), &path.path.replace('_', " "));
    let Some(kld) = path.kld else {
        svg.text("bad", (left, y + 4.0), "no row could be compared");
        return;
    };
    svg.line("track-line", (left, y), (right, y));
    svg.line("interval", (axis.x(kld.low), y), (axis.x(kld.high), y));
    svg.dot("tail", (axis.x(kld.p999), y), 3.0, &format!("99.9 % of rows below {}", self::kld(kld.p999)));
    let class = if path.bad_rows > 0 {
        "mean bad-dot"
    } else if worst {
        "mean worst"
    } else {
        "mean"
    };
    svg.dot(class, (axis.x(kld.mean), y), 6.0, &format!("mean {}", self::kld(kld.mean)));
    svg.text(if worst { "value strong" } else { "value" }, (right + 14.0, y + 4.0), &self::kld(kld.mean));
}

/// A decode step from its time down to its floor, a stretch a row.
pub(super) fn waterfall(profile: &Profile) -> String {
    const ROW: f64 = 26.0;
    let (left, right) = (230.0, 620.0);
    let stretches = profile.waterfall();
    let mut svg = Svg::new(stretches.len() as f64 * ROW + 6.0);
    let scale = (right - left) / profile.step_us.max(1e-9);
    let mut at = right;
    for (i, stretch) in stretches.iter().enumerate() {
        let (y, width) = (i as f64 * ROW + 4.0, stretch.us * scale);
        let from = if stretch.is_floor { left } else { at - width };
        let class = if stretch.is_floor { "fill" } else { "fill-2" };
        svg.text("label", (0.0, y + 13.0), &stretch.name.replace('_', " "));
        svg.rect("track", (left, y), (right - left, 16.0));
        svg.rect(class, (from, y), (width.max(1.0), 16.0));
        svg.text("value", (right + 12.0, y + 13.0), &format!("{} µs", rate(stretch.us)));
        at -= width;
    }
    svg.finish("A decode step from its time down to its floor")
}

/// The roofline of a decode step: measured roofs, each op a dot sized by its time.
pub(super) fn roofline(profile: &Profile, probe: &Probe) -> String {
    let (left, right, top, bottom) = (56.0, 700.0, 16.0, 236.0);
    let limits = probe.limits(probe.machine.cores);
    let peak = limits.arithmetic.iter().map(|a| a.ops_s).fold(0.0, f64::max);
    let ops: Vec<(&str, f64, f64, f64)> = profile
        .ops
        .iter()
        .filter(|op| op.bytes > 0 && op.flops > 0 && op.time_us > 0.0)
        .map(|op| (op.op.as_str(), op.flops as f64 / op.bytes as f64, op.flops as f64 / op.time_us * 1e6, op.time_us))
        .collect();
    let dots = ops.iter().map(|op| op.1);
    let (low, high) = (dots.clone().fold(0.25, f64::min).log2().floor(), dots.fold(64.0, f64::max).log2().ceil());
    let lowest = ops.iter().map(|op| op.2).fold(peak / 1e4, f64::min).max(1.0).log10().floor();
    let highest = (peak * 1.3).max(10.0).log10();
    let x = |intensity: f64| left + (right - left) * (intensity.log2() - low) / (high - low).max(1.0);
    let y = |ops_s: f64| bottom - (bottom - top) * (ops_s.max(1.0).log10() - lowest) / (highest - lowest).max(0.1);
    let mut svg = Svg::new(270.0);
    for power in lowest as i32..=highest as i32 {
        svg.line("grid", (left, y(10f64.powi(power))), (right, y(10f64.powi(power))));
        svg.text("tick end", (left - 8.0, y(10f64.powi(power)) + 4.0), &rate(10f64.powi(power) / 1e9));
    }
    for power in low as i32..=high as i32 {
        svg.text("tick middle", (x(2f64.powi(power)), bottom + 18.0), &format!("{}", 2f64.powi(power)));
    }
    for point in probe.by_level() {
        let roof = |intensity: f64| (intensity * point.bytes_s.median).min(peak);
        let knee = (peak / point.bytes_s.median).clamp(2f64.powf(low), 2f64.powf(high));
        let line: Vec<(f64, f64)> =
            [2f64.powf(low), knee, 2f64.powf(high)].map(|intensity| (x(intensity), y(roof(intensity)))).into();
        svg.path("curve thin", &line);
        svg.text("faint", (x(2f64.powf(low)) + 4.0, y(roof(2f64.powf(low))) - 5.0), point.level.label());
    }
    let longest = ops.iter().map(|op| op.3).fold(1.0, f64::max);
    let mut taken: Vec<f64> = Vec::new();
    for (name, intensity, ops_s, time_us) in &ops {
        let size = 4.0 + 10.0 * (time_us / longest).sqrt();
        svg.dot("point", (x(*intensity), y(*ops_s)), size, &format!("{name}: {} µs a step", rate(*time_us)));
        if *time_us > longest / 20.0 {
            let mut at = y(*ops_s) + 4.0;
            while taken.iter().any(|other| (other - at).abs() < 14.0) {
                at += 14.0;
            }
            taken.push(at);
            svg.text("label", (x(*intensity) + size + 4.0, at), &name.replace('_', " "));
        }
    }
    svg.text(
        "tick",
        (left, bottom + 34.0),
        "operations a byte; height: Gop/s; lines: what this machine was measured to do",
    );
    svg.finish("Roofline of a decode step")
}

/// Tokens a second by requests side by side.
pub(super) fn widths(widths: &[WidthSpeed]) -> String {
    const ROW: f64 = 28.0;
    let top = widths.iter().map(|one| one.total_tok_s).fold(1.0, f64::max);
    let mut svg = Svg::new(widths.len() as f64 * ROW + 4.0);
    for (i, one) in widths.iter().enumerate() {
        let y = i as f64 * ROW + 4.0;
        svg.text("label", (0.0, y + 13.0), &format!("{} side by side", one.width));
        svg.rect("track", (130.0, y), (420.0, 16.0));
        svg.rect("fill-2", (130.0, y), (420.0 * one.total_tok_s / top, 16.0));
        svg.text("value", (564.0, y + 13.0), &format!("{} tok/s together", rate(one.total_tok_s)));
    }
    svg.finish("Tokens a second by requests side by side")
}

/// A logarithmic axis in powers of ten. What is smaller than its start stands at the start.
struct Decades {
    first: i32,
    last: i32,
    span: (f64, f64),
}

impl Decades {
    fn over(values: impl Iterator<Item = f64>, span: (f64, f64)) -> Self {
        let logs: Vec<i32> = values.filter(|v| *v > 1e-8).map(|v| v.log10().floor() as i32).collect();
        let first = logs.iter().min().copied().unwrap_or(-4);
        let last = logs.iter().max().copied().unwrap_or(0) + 1;
        Self { first, last: last.max(first + 2), span }
    }

    fn x(&self, value: f64) -> f64 {
        let (left, right) = self.span;
        let place = (value.max(1e-300).log10() - f64::from(self.first)) / f64::from(self.last - self.first);
        left + (right - left) * place.clamp(0.0, 1.0)
    }

    fn ticks(&self) -> Vec<(f64, String)> {
        (self.first..=self.last)
            .map(|power| {
                let label = match power {
                    -3.. => format!("{}", 10f64.powi(power)),
                    _ => format!("1e{power}"),
                };
                (self.x(10f64.powi(power)), label)
            })
            .collect()
    }
}

/// Read bandwidth over the working set for the most and the fewest threads, levels as bands, and where the model lies.
pub(super) fn bandwidth(probe: &Probe, model_bytes: Option<u64>) -> String {
    let (left, right, top, bottom) = (52.0, 708.0, 26.0, 226.0);
    let mut svg = Svg::new(268.0);
    let most = probe.read.iter().map(|p| p.threads).max().unwrap_or(1);
    let fewest = probe.read.iter().map(|p| p.threads).min().unwrap_or(1);
    let sets: Vec<f64> = probe.read.iter().map(|p| p.working_set_bytes as f64).collect();
    let (small, large) = (sets.iter().copied().fold(f64::MAX, f64::min), sets.iter().copied().fold(0.0, f64::max));
    let highest = probe.read.iter().map(|p| p.bytes_s.median).fold(1.0, f64::max) * 1.08;
    let x = |bytes: f64| {
        let place = (bytes.max(1.0) / small).log2() / (large / small).log2().max(1e-9);
        left + (right - left) * place.clamp(0.0, 1.0)
    };
    let y = |bytes_s: f64| bottom - (bottom - top) * bytes_s / highest;
    bands(&mut svg, probe, most, &x, (top, bottom));
    for step in 0..=4 {
        let value = highest * f64::from(step) / 4.0;
        svg.line("grid", (left, y(value)), (right, y(value)));
        svg.text("tick end", (left - 8.0, y(value) + 4.0), &gb_s(value));
    }
    svg.text("faint", (0.0, 12.0), "GB/s");
    let curve = |threads: u32| -> Vec<(f64, f64)> {
        let points = probe.read.iter().filter(|p| p.threads == threads);
        points.map(|p| (x(p.working_set_bytes as f64), y(p.bytes_s.median))).collect()
    };
    if fewest != most {
        svg.path("curve thin", &curve(fewest));
    }
    svg.path("curve", &curve(most));
    for point in probe.read.iter().filter(|p| p.threads == most) {
        let title = format!("{}: {} GB/s", bytes(point.working_set_bytes), gb_s(point.bytes_s.median));
        svg.dot("point", (x(point.working_set_bytes as f64), y(point.bytes_s.median)), 3.0, &title);
    }
    if let Some(model) = model_bytes {
        let at = x(model as f64);
        svg.line("limit", (at, top), (at, bottom));
        let (class, at) = if at > 560.0 { ("limit-label end", at - 6.0) } else { ("limit-label", at + 6.0) };
        svg.text(class, (at, top + 30.0), &format!("a decode pass: {}", bytes(model)));
    }
    svg.text(
        "tick",
        (left, bottom + 34.0),
        &format!("working set from {} to {}", bytes(small as u64), bytes(large as u64)),
    );
    let legend =
        if fewest == most { threads(most) } else { format!("bold: {}, thin: {}", threads(most), threads(fewest)) };
    svg.text("tick end", (right, bottom + 34.0), &legend);
    svg.finish("Read bandwidth by working set")
}

fn threads(count: u32) -> String {
    if count == 1 { "1 thread".into() } else { format!("{count} threads") }
}

fn bands(svg: &mut Svg, probe: &Probe, threads: u32, x: &dyn Fn(f64) -> f64, (top, bottom): (f64, f64)) {
    let points: Vec<_> = probe.read.iter().filter(|p| p.threads == threads).collect();
    let mut start = 0;
    for i in 1..=points.len() {
        if i < points.len() && points[i].level == points[start].level {
            continue;
        }
        let from = x(points[start].working_set_bytes as f64);
        let to = points.get(i).map_or_else(|| x(f64::MAX), |next| x(next.working_set_bytes as f64));
        let class = format!("band band-{}", points[start].level.label().to_lowercase());
        svg.rect(&class, (from, top), (to - from, bottom - top));
        svg.text("tick middle", ((from + to) / 2.0, bottom + 16.0), points[start].level.label());
        start = i;
    }
}

/// Arithmetic rates by format.
pub(super) fn arithmetic(probe: &Probe) -> String {
    const ROW: f64 = 28.0;
    let limits = probe.limits(probe.machine.cores);
    let top = limits.arithmetic.iter().map(|a| a.ops_s).fold(1.0, f64::max);
    let mut svg = Svg::new(limits.arithmetic.len() as f64 * ROW + 4.0);
    for (i, limit) in limits.arithmetic.iter().enumerate() {
        let y = i as f64 * ROW + 4.0;
        svg.text("label", (0.0, y + 13.0), super::format::precision(limit.precision));
        svg.rect("track", (52.0, y), (500.0, 16.0));
        svg.rect("fill-2", (52.0, y), (500.0 * limit.ops_s / top, 16.0));
        svg.text("value", (566.0, y + 13.0), &format!("{} Gop/s", rate(limit.ops_s / 1e9)));
    }
    svg.finish("Arithmetic rate by number format")
}

/// The bar of a score card: how much of the ceiling is reached.
pub(super) fn gauge(share: Option<f64>, class: &str) -> String {
    let mut svg = Svg::new(22.0);
    svg.rect("track", (0.0, 3.0), (WIDTH, 16.0));
    if let Some(share) = share {
        svg.rect(class, (0.0, 3.0), (WIDTH * share.clamp(0.0, 1.0), 16.0));
    }
    svg.finish("Share of the ceiling")
}
