//! Encodes spans in the terms of OpenTelemetry. Every attribute's name is here and on the page docs/traces.md.
//!
//! Names follow the semantic conventions for RPC (release candidate of 2026: `rpc.system.name`, `rpc.method` with the
//! service in it) and for GenAI. Names of things that the conventions do not cover begin with `croupier.`.

use super::wire::{
    AnyValue, ExportTraceServiceRequest, KeyValue, Resource, ResourceSpans, Scope, ScopeSpans, Span, SpanKind, Status,
    StatusCode, Value,
};
use crate::trace;
use std::time::Duration;

/// Name of the service and of the library.
const NAME: &str = "croupier";
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Methods as the conventions write them. They are also the names of spans.
const DECODE: &str = "croupier.v1.Sampler/Decode";
const SAMPLE: &str = "croupier.v1.Sampler/Sample";
/// Codes that mean a failure of the server. The other codes answer a client's mistake or a client that left.
const FAILURES: [&str; 6] = ["UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"];
/// Flags of a span: it is recorded; it is known whether the parent is remote; the parent is remote.
const SAMPLED: u32 = 0x001;
const PARENT_IS_KNOWN: u32 = 0x100;
const PARENT_IS_REMOTE: u32 = 0x200;

/// The request that carries `spans`. `instance` names this process among others.
#[must_use]
pub(super) fn request(spans: &[trace::Span], instance: &str) -> ExportTraceServiceRequest {
    let resource = Resource {
        attributes: vec![
            text("service.name", NAME),
            text("service.version", VERSION),
            text("service.instance.id", instance),
        ],
    };
    let scope = Scope { name: NAME.to_owned(), version: VERSION.to_owned() };
    let spans = spans.iter().flat_map(|span| std::iter::once(step(span)).chain(stages(span))).collect();
    let scope_spans = vec![ScopeSpans { scope: Some(scope), spans }];
    ExportTraceServiceRequest { resource_spans: vec![ResourceSpans { resource: Some(resource), scope_spans }] }
}

fn step(span: &trace::Span) -> Span {
    let name = match span.operation {
        trace::Operation::Step => DECODE,
        trace::Operation::Sample => SAMPLE,
    };
    let remote = if span.parent.is_some() { PARENT_IS_REMOTE } else { 0 };
    let failure = span.code.filter(|code| FAILURES.contains(code));
    let mut attributes = vec![text("rpc.system.name", "grpc"), text("rpc.method", name)];
    attributes.extend(span.code.map(|code| text("rpc.response.status_code", code)));
    attributes.extend(failure.map(|code| text("error.type", code)));
    attributes.extend(facts(span));
    Span {
        trace_id: span.trace_id.to_vec(),
        span_id: span.span_id.to_vec(),
        parent_span_id: span.parent.map(Vec::from).unwrap_or_default(),
        name: name.to_owned(),
        kind: SpanKind::Server.into(),
        start_time_unix_nano: nanos(span.time.0),
        end_time_unix_nano: nanos(span.time.1),
        attributes,
        status: failure.map(|_| Status { code: StatusCode::Error.into() }),
        flags: SAMPLED | PARENT_IS_KNOWN | remote,
    }
}

fn facts(span: &trace::Span) -> Vec<KeyValue> {
    let facts = &span.facts;
    let mut told = vec![number("croupier.message.bytes", facts.message_bytes as u64)];
    if span.operation == trace::Operation::Step {
        told.push(number("croupier.step.id", facts.step_id));
    }
    // A faulty message may not have been read up to this field.
    if !facts.model.is_empty() {
        told.push(text("gen_ai.request.model", &facts.model));
    }
    if let Some(path) = facts.data_path {
        told.extend([text("croupier.data_path", path.name()), number("croupier.rows", facts.rows as u64)]);
    }
    if facts.backend.is_some() {
        told.push(number("croupier.tokens", facts.tokens as u64));
        let (drafted, accepted) = facts.drafts;
        if drafted > 0 {
            told.push(number("croupier.draft_tokens", drafted as u64));
            told.push(number("croupier.draft_tokens_accepted", accepted as u64));
        }
        told.push(number("croupier.work.failed", facts.failed as u64));
    }
    let outcome = span.reason.map_or_else(|| "ok".to_owned(), str::to_ascii_lowercase);
    told.push(text("croupier.outcome", &outcome));
    told
}

fn stages(span: &trace::Span) -> impl Iterator<Item = Span> {
    span.stages.iter().map(|&(id, name, from, to)| Span {
        trace_id: span.trace_id.to_vec(),
        span_id: id.to_vec(),
        parent_span_id: span.span_id.to_vec(),
        name: name.to_owned(),
        kind: SpanKind::Internal.into(),
        start_time_unix_nano: nanos(from),
        end_time_unix_nano: nanos(to),
        attributes: Vec::new(),
        status: None,
        flags: SAMPLED | PARENT_IS_KNOWN,
    })
}

fn nanos(since_epoch: Duration) -> u64 {
    u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX)
}

fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, Value::Text(value.to_owned()))
}

fn number(key: &str, value: u64) -> KeyValue {
    // OTLP has no unsigned numbers, but a worker may give its steps any number.
    attribute(key, Value::Number(i64::try_from(value).unwrap_or(i64::MAX)))
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(code: Option<&'static str>) -> Span {
        let time = (Duration::from_nanos(5), Duration::from_nanos(7));
        let (operation, facts) = (trace::Operation::Sample, trace::Facts::default());
        let (trace_id, span_id, stages) = ([1; 16], [2; 8], Vec::new());
        step(&trace::Span { trace_id, span_id, parent: None, operation, facts, code, reason: code, time, stages })
    }

    #[test]
    fn failures_of_the_server_are_errors_and_a_clients_mistakes_are_not() {
        for code in FAILURES {
            let span = span(Some(code));
            assert_eq!(span.status, Some(Status { code: StatusCode::Error.into() }), "{code}");
            assert!(span.attributes.contains(&text("error.type", code)), "{code}");
            assert!(span.attributes.contains(&text("rpc.response.status_code", code)), "{code}");
        }
        for code in [None, Some("OK"), Some("CANCELLED"), Some("INVALID_ARGUMENT"), Some("RESOURCE_EXHAUSTED")] {
            let span = span(code);
            assert_eq!(span.status, None, "{code:?}");
            assert!(span.attributes.iter().all(|attribute| attribute.key != "error.type"), "{code:?}");
        }
    }

    #[test]
    fn numbers_that_otlp_has_not_are_the_largest_it_has() {
        assert_eq!(number("n", u64::MAX), attribute("n", Value::Number(i64::MAX)));
        assert_eq!((span(None).start_time_unix_nano, span(None).end_time_unix_nano), (5, 7));
    }
}
