//! Counters, histograms and gauges in the Prometheus text format.
//!
//! Recording is lock-free or nearly so and cannot fail, so it never gets between a client and its answer. Counters never
//! go back, also not when the engine's own counters start over with a new host. Token totals are the sums of the usage
//! that clients were told, plus what was generated for clients that left.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

const FIRST_TOKEN_BUCKETS_S: &[f64] =
    &[0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0];
const INTER_TOKEN_BUCKETS_S: &[f64] =
    &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.5, 5.0, 10.0];
const REQUEST_BUCKETS_S: &[f64] =
    &[0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0];

/// A counter.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `amount`.
    pub fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A value that goes up and down.
#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

impl Gauge {
    /// Adds `amount`, which may be negative.
    pub fn add(&self, amount: i64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// Its value.
    pub fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A counter for each combination of label values seen.
#[derive(Debug, Default)]
pub struct Family(Mutex<BTreeMap<Vec<String>, u64>>);

impl Family {
    /// Adds 1 for these label values, in the order of the family's label names.
    pub fn count(&self, labels: &[&str]) {
        let key = labels.iter().map(|&label| label.to_owned()).collect();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_insert(0) += 1;
    }
}

/// A histogram of durations.
#[derive(Debug)]
pub struct Histogram {
    bounds_s: &'static [f64],
    counts: Vec<AtomicU64>,
    sum_us: AtomicU64,
}

impl Histogram {
    fn new(bounds_s: &'static [f64]) -> Self {
        Self {
            bounds_s,
            counts: bounds_s.iter().map(|_| AtomicU64::new(0)).chain([AtomicU64::new(0)]).collect(),
            sum_us: AtomicU64::new(0),
        }
    }

    /// Adds one observation.
    pub fn observe(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let bucket = self.bounds_s.partition_point(|&bound| bound < seconds);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.sum_us.fetch_add(micros, Ordering::Relaxed);
    }
}

/// What an engine host reports, for gauges.
#[derive(Clone, Copy, Debug, Default)]
pub struct EngineGauges {
    /// Whether a host is up.
    pub up: bool,
    /// Generations in a batch.
    pub running: u32,
    /// Generations waiting for one.
    pub waiting: u32,
    /// KV blocks in use.
    pub kv_blocks_used: u32,
    /// KV blocks there are.
    pub kv_blocks: u32,
}

/// All metrics of a server.
#[derive(Debug)]
pub struct Metrics {
    /// HTTP responses by route and status.
    pub http_requests: Family,
    /// Requests that ended, by API and by how.
    pub requests: Family,
    /// Requests refused because the server was full or not ready, by reason.
    pub rejections: Family,
    /// Prompt tokens computed.
    pub prompt_tokens_computed: Counter,
    /// Prompt tokens taken from the prefix cache.
    pub prompt_tokens_cached: Counter,
    /// Tokens generated.
    pub generated_tokens: Counter,
    /// Tokens drafted.
    pub drafted_tokens: Counter,
    /// Drafted tokens accepted.
    pub accepted_tokens: Counter,
    /// Generations the engine started over.
    pub preemptions: Counter,
    /// Engine hosts started after the first.
    pub engine_restarts: Counter,
    /// Clients that left before their answer was complete.
    pub client_disconnects: Counter,
    /// Streams open.
    pub streams_open: Gauge,
    /// From the request to its first token.
    pub first_token: Histogram,
    /// Between tokens that arrived one after the other.
    pub inter_token: Histogram,
    /// From the request to its end.
    pub request: Histogram,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            http_requests: Family::default(),
            requests: Family::default(),
            rejections: Family::default(),
            prompt_tokens_computed: Counter::default(),
            prompt_tokens_cached: Counter::default(),
            generated_tokens: Counter::default(),
            drafted_tokens: Counter::default(),
            accepted_tokens: Counter::default(),
            preemptions: Counter::default(),
            engine_restarts: Counter::default(),
            client_disconnects: Counter::default(),
            streams_open: Gauge::default(),
            first_token: Histogram::new(FIRST_TOKEN_BUCKETS_S),
            inter_token: Histogram::new(INTER_TOKEN_BUCKETS_S),
            request: Histogram::new(REQUEST_BUCKETS_S),
        }
    }
}

impl Metrics {
    /// Everything in the Prometheus text format.
    pub fn render(&self, engine: EngineGauges) -> String {
        let mut page = Page::default();
        page.family("crit_http_requests_total", "HTTP responses.", &["route", "status"], &self.http_requests);
        page.family(
            "crit_requests_total",
            "Generation requests that ended.",
            &["api", "finish_reason"],
            &self.requests,
        );
        page.family("crit_admission_rejections_total", "Generation requests refused.", &["reason"], &self.rejections);
        page.head("crit_prompt_tokens_total", "counter", "Prompt tokens.");
        page.sample("crit_prompt_tokens_total{source=\"computed\"}", self.prompt_tokens_computed.get());
        page.sample("crit_prompt_tokens_total{source=\"cached\"}", self.prompt_tokens_cached.get());
        page.counter("crit_generation_tokens_total", "Tokens generated.", &self.generated_tokens);
        page.counter("crit_draft_tokens_total", "Tokens drafted.", &self.drafted_tokens);
        page.counter("crit_accepted_tokens_total", "Drafted tokens accepted.", &self.accepted_tokens);
        page.counter("crit_preemptions_total", "Generations started over by the engine.", &self.preemptions);
        page.counter("crit_engine_restarts_total", "Engine hosts started after the first.", &self.engine_restarts);
        page.counter("crit_client_disconnects_total", "Clients that left early.", &self.client_disconnects);
        page.gauge("crit_http_streams_open", "Streams open.", self.streams_open.get());
        page.gauge("crit_engine_up", "Whether an engine host is up.", i64::from(engine.up));
        page.gauge("crit_requests_running", "Generations in a batch.", engine.running.into());
        page.gauge("crit_requests_waiting", "Generations waiting for a batch.", engine.waiting.into());
        page.gauge("crit_kv_blocks_used", "KV blocks in use.", engine.kv_blocks_used.into());
        page.gauge("crit_kv_blocks", "KV blocks there are.", engine.kv_blocks.into());
        page.histogram("crit_time_to_first_token_seconds", "From request to first token.", &self.first_token);
        page.histogram("crit_inter_token_latency_seconds", "Between tokens.", &self.inter_token);
        page.histogram("crit_e2e_request_latency_seconds", "From request to end.", &self.request);
        page.0
    }
}

#[derive(Default)]
struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.0, "{name} {value}");
    }

    fn counter(&mut self, name: &str, help: &str, counter: &Counter) {
        self.head(name, "counter", help);
        self.sample(name, counter.get());
    }

    fn gauge(&mut self, name: &str, help: &str, value: i64) {
        self.head(name, "gauge", help);
        self.sample(name, value);
    }

    fn family(&mut self, name: &str, help: &str, labels: &[&str], family: &Family) {
        self.head(name, "counter", help);
        for (values, count) in family.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let pairs: Vec<String> =
                labels.iter().zip(values).map(|(label, value)| format!("{label}=\"{}\"", escape(value))).collect();
            self.sample(&format!("{name}{{{}}}", pairs.join(",")), count);
        }
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, "histogram", help);
        let mut below = 0;
        for (index, count) in histogram.counts.iter().enumerate() {
            below += count.load(Ordering::Relaxed);
            let bound = histogram.bounds_s.get(index).map_or("+Inf".to_owned(), f64::to_string);
            self.sample(&format!("{name}_bucket{{le=\"{bound}\"}}"), below);
        }
        self.sample(
            &format!("{name}_sum"),
            Duration::from_micros(histogram.sum_us.load(Ordering::Relaxed)).as_secs_f64(),
        );
        self.sample(&format!("{name}_count"), below);
    }
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_buckets_accumulate_and_end_at_the_count() {
        let metrics = Metrics::default();
        for millis in [1, 7, 7, 200_000] {
            metrics.first_token.observe(Duration::from_millis(millis));
        }
        let page = metrics.render(EngineGauges::default());
        assert!(page.contains("crit_time_to_first_token_seconds_bucket{le=\"0.001\"} 1\n"));
        assert!(page.contains("crit_time_to_first_token_seconds_bucket{le=\"0.01\"} 3\n"));
        assert!(page.contains("crit_time_to_first_token_seconds_bucket{le=\"160\"} 3\n"));
        assert!(page.contains("crit_time_to_first_token_seconds_bucket{le=\"+Inf\"} 4\n"));
        assert!(page.contains("crit_time_to_first_token_seconds_count 4\n"));
        assert!(page.contains("crit_time_to_first_token_seconds_sum 200.015\n"));
    }

    #[test]
    fn labels_are_escaped() {
        let metrics = Metrics::default();
        metrics.rejections.count(&["a\"b\\"]);
        assert!(metrics.render(EngineGauges::default()).contains(r#"{reason="a\"b\\"} 1"#));
    }
}
