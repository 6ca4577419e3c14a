//! The figures that follow from two scrapes, in the terms of docs/metrics.md.

use super::difference::{Difference, Increase};
use super::{Load, Paths, Scrape, Speculation};
use crate::metrics::Stage;
use crate::metrics::catalog::{self as cat, Def};
use serde::Serialize;
use std::collections::BTreeMap;

/// A counter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Count {
    /// Since the server's start.
    pub total: u64,
    /// Between the two scrapes.
    pub new: u64,
    /// Between the two scrapes, per second.
    pub per_second: f64,
}

impl Count {
    pub(super) fn new(increase: Increase, seconds: f64) -> Self {
        let per_second = if seconds > 0.0 { increase.new / seconds } else { 0.0 };
        Self { total: increase.total as u64, new: increase.new as u64, per_second }
    }
}

/// How full something is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Fill {
    /// The resource, by the name that the alert CroupierSaturated uses.
    pub resource: &'static str,
    /// How much of it is used.
    pub used: u64,
    /// How much of it there is.
    pub capacity: u64,
}

/// How long a stage of steps took.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Latency {
    /// Label `stage` of `croupier_step_duration_seconds`.
    pub stage: &'static str,
    /// Number of steps.
    pub steps: Count,
    /// Median in seconds, estimated from buckets, so at most their highest bound. `None` without steps.
    pub p50: Option<f64>,
    /// 90th percentile.
    pub p90: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
}

/// The work done for one model label, and what is open for it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Model {
    /// The model label.
    pub model: String,
    /// Decode streams open.
    pub streams: u64,
    /// Sequences open.
    pub sequences: u64,
    /// Tokens emitted.
    pub tokens: Count,
    /// Rows answered with OK, by kind of work. Kinds without rows are left out.
    pub rows: BTreeMap<String, Count>,
    /// Rows answered with an error.
    pub rows_invalid: Count,
}

/// One kind of failure that happened at least once since the start.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Error {
    /// `refused` (connections, calls and steps), `row`, `call`, `opening`, `lease` (of a region), `shards` (of a step),
    /// `reload`, or `accept`.
    pub kind: &'static str,
    /// The label of the reason. For calls: the method and the code.
    pub reason: String,
    /// The model label, for rows and openings.
    pub model: Option<String>,
    /// How often it happened.
    pub count: Count,
}

/// All figures that follow from two scrapes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figures {
    /// `host:port` of the admin port.
    pub address: String,
    /// The server's version.
    pub version: String,
    /// The server's backend.
    pub backend: String,
    /// The device that the backend runs on.
    pub device: String,
    /// Whether the server accepts work.
    pub ready: bool,
    /// Time since the server's start, by this machine's clock.
    pub uptime_seconds: f64,
    /// Time between the two scrapes.
    pub seconds: f64,
    /// Whether the server was started between the two scrapes. If so, everything counts from its start.
    pub restarted: bool,
    /// Tokens emitted.
    pub tokens: Count,
    /// Rows received and not yet answered.
    pub rows_in_flight: u64,
    /// The fill of every bounded resource. Device memory is left out where there is no device.
    pub fill: Vec<Fill>,
    /// Resident memory of the process.
    pub resident_bytes: u64,
    /// Latencies by stage.
    pub latency: Vec<Latency>,
    /// How busy the server is, and what it waits for.
    pub load: Load,
    /// Work by model label, for labels that had work or have sequences open.
    pub models: Vec<Model>,
    /// How logits reached the server.
    pub paths: Paths,
    /// Drafts and their acceptance.
    pub speculation: Speculation,
    /// Failures.
    pub errors: Vec<Error>,
}

/// For each resource: its name, its used amount and its capacity.
const FILL: [(&str, Def, Def); 10] = [
    ("queue", cat::QUEUE_DEPTH, cat::QUEUE_CAPACITY),
    ("bytes_in_flight", cat::IN_FLIGHT_BYTES, cat::IN_FLIGHT_BYTES_CAPACITY),
    ("state_bytes", cat::STATE_BYTES, cat::STATE_BYTES_CAPACITY),
    ("sequences", cat::SEQUENCES, cat::SEQUENCES_CAPACITY),
    ("streams", cat::STREAMS, cat::STREAMS_CAPACITY),
    ("connections", cat::CONNECTIONS, cat::CONNECTIONS_CAPACITY),
    ("region_bytes", cat::REGION_BYTES, cat::REGION_BYTES_CAPACITY),
    ("device_region_bytes", cat::DEVICE_REGION_BYTES, cat::DEVICE_REGION_BYTES_CAPACITY),
    ("shard_bytes", cat::SHARD_BYTES, cat::SHARD_BYTES_CAPACITY),
    ("shard_ranks", cat::SHARD_RANKS, cat::SHARD_RANKS_CAPACITY),
];

impl Figures {
    /// What happened between `before` and `now`. Two parts are counted from `long_before`, since a short time says little
    /// about them: speculation, of which only one draft token in sixteen is measured, and the load, of which the CPU
    /// time is told in whole seconds.
    #[must_use]
    pub fn between(address: &str, before: &Scrape, now: &Scrape, long_before: &Scrape) -> Self {
        let (d, long) = (Difference::new(before, now), Difference::new(long_before, now));
        let fill = |(resource, used, capacity): &(&'static str, Def, Def)| Fill {
            resource,
            used: d.gauge(used) as u64,
            capacity: d.gauge(capacity) as u64,
        };
        Self {
            address: address.to_owned(),
            version: d.label(&cat::BUILD_INFO, "version"),
            backend: d.label(&cat::BUILD_INFO, "backend"),
            device: d.label(&cat::BUILD_INFO, "device"),
            ready: d.gauge(&cat::READY) > 0.0,
            uptime_seconds: (now.clock - d.gauge(&cat::PROCESS_START)).max(0.0),
            seconds: d.seconds,
            restarted: d.restarted,
            tokens: Count::new(d.all(&cat::TOKENS), d.seconds),
            rows_in_flight: d.gauge(&cat::IN_FLIGHT_ROWS) as u64,
            fill: FILL.iter().map(fill).filter(|fill| fill.capacity > 0).collect(),
            resident_bytes: d.gauge(&cat::PROCESS_RESIDENT) as u64,
            latency: latency(&d),
            load: Load::of(&long),
            models: models(&d),
            paths: Paths::of(&d),
            speculation: Speculation::of(&long),
            errors: errors(&d),
        }
    }

    /// The figures as one JSON object.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("figures have only strings and numbers")
    }
}

fn latency(d: &Difference<'_>) -> Vec<Latency> {
    let stages = d.histograms(&cat::STEP_DURATION, ["stage"]);
    let of = |stage: &'static str| {
        let histogram = stages.get(&[stage])?;
        let quantile = |q| histogram.quantile(q);
        let steps = Count::new(histogram.count, d.seconds);
        Some(Latency { stage, steps, p50: quantile(0.5), p90: quantile(0.9), p99: quantile(0.99) })
    };
    Stage::ALL.into_iter().map(Stage::name).filter_map(of).collect()
}

fn models(d: &Difference<'_>) -> Vec<Model> {
    let rows = d.by(&cat::ROWS, ["model", "kind"]);
    let invalid = d.by(&cat::ROWS_INVALID, ["model"]);
    let [streams, sequences] = [&cat::MODEL_STREAMS, &cat::MODEL_SEQUENCES].map(|def| d.by(def, ["model"]));
    let open =
        |gauge: &BTreeMap<[&str; 1], Increase>, model: &str| gauge.get(&[model]).map_or(0, |open| open.total as u64);
    let model = |([model], tokens): (&[&str; 1], &Increase)| {
        let own = rows.iter().filter(|([m, _], rows)| m == model && rows.total > 0.0);
        Model {
            model: (*model).to_owned(),
            streams: open(&streams, model),
            sequences: open(&sequences, model),
            tokens: Count::new(*tokens, d.seconds),
            rows: own.map(|([_, kind], rows)| ((*kind).to_owned(), Count::new(*rows, d.seconds))).collect(),
            rows_invalid: Count::new(invalid.get(&[*model]).copied().unwrap_or_default(), d.seconds),
        }
    };
    let all = d.by(&cat::TOKENS, ["model"]);
    let mut models: Vec<Model> = all.iter().map(model).collect();
    models.retain(|m| m.tokens.total > 0 || !m.rows.is_empty() || m.rows_invalid.total > 0 || m.sequences > 0);
    models
}

fn errors(d: &Difference<'_>) -> Vec<Error> {
    let error = |kind, reason: String, model: Option<&str>, count: Increase| {
        let model = model.map(str::to_owned);
        Error { kind, reason, model, count: Count::new(count, d.seconds) }
    };
    let refused = d.by(&cat::REJECTED, ["reason"]);
    let rows = d.by(&cat::ROWS_INVALID, ["reason", "model"]);
    let openings = d.by(&cat::OPENINGS_FAILED, ["reason", "model"]);
    let calls = d.by(&cat::REQUESTS, ["method", "code"]);
    let mut errors = Vec::new();
    errors.extend(refused.into_iter().map(|([reason], n)| error("refused", reason.to_owned(), None, n)));
    errors.extend(rows.into_iter().map(|([reason, model], n)| error("row", reason.to_owned(), Some(model), n)));
    errors.extend(openings.into_iter().map(|([reason, model], n)| error("opening", reason.to_owned(), Some(model), n)));
    let failed = calls.into_iter().filter(|([_, code], _)| *code != "OK");
    errors.extend(failed.map(|([method, code], n)| error("call", format!("{method} {code}"), None, n)));
    let repeated = d.by(&cat::ROWS_REPEATED, ["like", "model"]);
    errors.extend(repeated.into_iter().map(|([like, model], n)| error("repeated", like.to_owned(), Some(model), n)));
    let leases = d.by(&cat::REGION_LEASES, ["result"]).into_iter().filter(|([result], _)| *result != "granted");
    errors.extend(leases.map(|([result], n)| error("lease", result.to_owned(), None, n)));
    let shards = d.by(&cat::SHARD_FAILURES, ["reason"]);
    errors.extend(shards.into_iter().map(|([reason], n)| error("shards", reason.to_owned(), None, n)));
    let reloads = d.by(&cat::RELOADS, ["what", "result"]).into_iter().filter(|([_, result], _)| *result != "ok");
    errors.extend(reloads.map(|([what, _], n)| error("reload", what.to_owned(), None, n)));
    errors.push(error("accept", "accept_errors".to_owned(), None, d.all(&cat::ACCEPT_ERRORS)));
    errors.retain(|e| e.count.total > 0);
    errors
}
