//! `GET /metrics`: the engine's statistics in the Prometheus text format.
//!
//! The engine counts for itself, histograms included, so nothing is counted twice here: the record is
//! only written down, with the exporter crate's formatting. Names that vLLM has keep vLLM's names and
//! its label, so that its dashboards show this server too.

use crate::http::state::AppState;
use actix_web::HttpResponse;
use actix_web::web::Data;
use lavalane_actors::settings::EngineSettings;
use lavalane_actors::statistics::{Histogram, Statistics};
use metrics::{Key, Label};
use metrics_exporter_prometheus::LabelSet;
use metrics_exporter_prometheus::formatting::{write_help_line, write_metric_line, write_type_line};
use std::fmt::Display;

/// Answers with all metrics.
pub async fn metrics(state: Data<AppState>) -> HttpResponse {
    let text = render(&state.engine.statistics(), state.engine.settings(), state.model.name());
    HttpResponse::Ok().content_type("text/plain; version=0.0.4; charset=utf-8").body(text)
}

/// Writes down `statistics`.
pub fn render(statistics: &Statistics, settings: &EngineSettings, model: &str) -> String {
    let mut writer = Writer { text: String::new(), model: model.to_owned() };
    gauges(&mut writer, statistics, settings);
    counters(&mut writer, statistics);
    histograms(&mut writer, statistics);
    writer.text
}

fn gauges(writer: &mut Writer, statistics: &Statistics, settings: &EngineSettings) {
    let pages = statistics.kv_pages_total.max(1) as f64;
    let used = statistics.kv_pages_used as f64 / pages;
    writer.gauge("vllm:num_requests_running", "Requests that have a lane.", statistics.requests_running);
    writer.gauge("vllm:num_requests_waiting", "Requests that wait for a lane.", statistics.requests_waiting);
    writer.gauge("vllm:kv_cache_usage_perc", "Part of the KV pages held by requests; 1 is all.", used);
    writer.gauge("vllm:gpu_cache_usage_perc", "The same, by its older name.", used);
    writer.gauge("lavalane:lanes", "Lanes.", settings.lanes);
    writer.gauge("lavalane:queue_capacity", "Requests that may wait.", settings.queue_capacity);
    writer.gauge("lavalane:kv_pages", "KV pages in the pool.", statistics.kv_pages_total);
    writer.gauge("lavalane:kv_pages_used", "KV pages held by requests.", statistics.kv_pages_used);
    let passed_over = statistics.passed_over_max;
    writer.gauge("lavalane:passed_over_max", "The most iterations in a row that a lane waited.", passed_over);
    let cached = statistics.kv_pages_cached;
    writer.gauge("lavalane:kv_pages_cached", "KV pages that hold only reusable prefixes.", cached);
}

fn counters(writer: &mut Writer, statistics: &Statistics) {
    writer.counter(
        "vllm:prompt_tokens_total",
        "Prompt tokens of running requests.",
        statistics.prompt_tokens,
    );
    writer.counter("vllm:generation_tokens_total", "Tokens drawn.", statistics.generation_tokens);
    writer.counter("vllm:num_preemptions_total", "Lanes preempted.", statistics.preemptions);
    let prompt_tokens = statistics.prompt_tokens;
    writer.counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the cache.", prompt_tokens);
    writer.counter("vllm:prefix_cache_hits_total", "Prompt tokens found there.", statistics.cached_tokens);
    let finished = [
        ("stop", statistics.requests_stopped),
        ("length", statistics.requests_length),
        ("abort", statistics.requests_cancelled),
    ];
    let name = "vllm:request_success_total";
    writer.head(name, "Requests that ended, by reason.", "counter");
    for (reason, count) in finished {
        writer.line(name, None, &[("finished_reason", reason)], None, count);
    }
    writer.counter("lavalane:requests_failed_total", "Requests that failed.", statistics.requests_failed);
    writer.counter("lavalane:requests_refused_total", "Requests refused.", statistics.requests_refused);
    writer.counter("lavalane:prefix_hits_total", "Requests with a cached prefix.", statistics.prefix_hits);
    let (loaded, saved) = (statistics.snapshots_loaded, statistics.snapshots_saved);
    writer.counter("lavalane:snapshots_loaded_total", "Prefixes that came from the disk.", loaded);
    writer.counter("lavalane:snapshots_saved_total", "Sequences written to the disk.", saved);
    let dropped = statistics.snapshots_dropped;
    writer.counter("lavalane:snapshots_dropped_total", "Sequences that were not written there.", dropped);
    writer.counter("lavalane:iterations_total", "Iterations.", statistics.iterations);
    writer.counter("lavalane:rows_total", "Rows, over all iterations.", statistics.rows);
    let partial = statistics.partial_batches;
    writer.counter("lavalane:partial_batches_total", "Iterations in which some lane did not run.", partial);
    writer.counter("lavalane:device_recoveries_total", "Devices made again.", statistics.recoveries);
}

fn histograms(writer: &mut Writer, statistics: &Statistics) {
    let times = [
        (
            "vllm:time_to_first_token_seconds",
            "From submission to the first token.",
            &statistics.first_token_time,
        ),
        ("vllm:time_per_output_token_seconds", "Between two tokens.", &statistics.inter_token_time),
        ("vllm:inter_token_latency_seconds", "The same, by its newer name.", &statistics.inter_token_time),
        ("vllm:request_queue_time_seconds", "From submission to a lane.", &statistics.queue_time),
        ("vllm:e2e_request_latency_seconds", "From submission to the end.", &statistics.request_time),
        (
            "lavalane:device_recovery_seconds",
            "From a device's loss to another in its place.",
            &statistics.recovery_time,
        ),
        (
            "lavalane:device_resumption_seconds",
            "From a device's loss until every running request has gone on or ended.",
            &statistics.resumption_time,
        ),
        ("lavalane:iteration_seconds", "From a batch's start to its answer.", &statistics.iteration_time),
        ("lavalane:scheduling_seconds", "Between two batches.", &statistics.scheduling_time),
        ("lavalane:rows_per_iteration", "Rows of an iteration.", &statistics.iteration_rows),
        (
            "lavalane:prompt_rows_beside_decodes",
            "Rows of prompts in an iteration in which other lanes decoded.",
            &statistics.prompt_rows_beside_decodes,
        ),
    ];
    for (name, help, histogram) in times {
        writer.histogram(name, help, histogram);
    }
}

struct Writer {
    text: String,
    model: String,
}

impl Writer {
    fn head(&mut self, name: &str, help: &str, kind: &str) {
        write_help_line(&mut self.text, name, None, None, help);
        write_type_line(&mut self.text, name, None, None, kind);
    }

    fn line(
        &mut self,
        name: &str,
        suffix: Option<&'static str>,
        labels: &[(&'static str, &'static str)],
        bound: Option<&str>,
        value: impl Display,
    ) {
        let own = [Label::new("model_name", self.model.clone())];
        let more = labels.iter().map(|(name, value)| Label::new(*name, *value));
        let key = Key::from_parts(name.to_owned(), own.into_iter().chain(more).collect::<Vec<_>>());
        let labels = LabelSet::from_key_and_global(&key, &Default::default());
        let bound = bound.map(|bound| ("le", bound));
        write_metric_line(&mut self.text, name, suffix, &labels, bound, value, None);
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, help, "gauge");
        self.line(name, None, &[], None, value);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, help, "counter");
        self.line(name, None, &[], None, value);
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, help, "histogram");
        let mut cumulative = 0;
        let bounds = histogram.bounds().iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        for (bound, count) in bounds.zip(histogram.counts()) {
            cumulative += count;
            self.line(name, Some("bucket"), &[], Some(&bound), cumulative);
        }
        self.line(name, Some("sum"), &[], None, histogram.sum());
        self.line(name, Some("count"), &[], None, histogram.count());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_vllm_s_dashboards_and_our_own_are_all_there() {
        let mut statistics = Statistics::new(10);
        statistics.kv_pages_used = 5;
        statistics.requests_stopped = 3;
        statistics.first_token_time.record(0.003);
        let text = render(&statistics, &EngineSettings::default(), "a \"model\"");
        for line in [
            "# TYPE vllm:num_requests_running gauge",
            "vllm:kv_cache_usage_perc{model_name=\"a \\\"model\\\"\"} 0.5",
            "vllm:request_success_total{model_name=\"a \\\"model\\\"\",finished_reason=\"stop\"} 3",
            "vllm:time_to_first_token_seconds_bucket{model_name=\"a \\\"model\\\"\",le=\"0.001\"} 0",
            "vllm:time_to_first_token_seconds_bucket{model_name=\"a \\\"model\\\"\",le=\"0.005\"} 1",
            "vllm:time_to_first_token_seconds_bucket{model_name=\"a \\\"model\\\"\",le=\"+Inf\"} 1",
            "vllm:time_to_first_token_seconds_count{model_name=\"a \\\"model\\\"\"} 1",
            "# TYPE lavalane:rows_per_iteration histogram",
            "lavalane:lanes{model_name=\"a \\\"model\\\"\"} 4",
            "lavalane:snapshots_loaded_total{model_name=\"a \\\"model\\\"\"} 0",
            "lavalane:partial_batches_total{model_name=\"a \\\"model\\\"\"} 0",
        ] {
            assert!(text.lines().any(|written| written == line), "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn every_metric_has_one_type() {
        let text = render(&Statistics::new(1), &EngineSettings::default(), "m");
        let mut names: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
