use super::*;
use crate::backend::BackendInfo;
use crate::limits::Limits;

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const UNSAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

fn metrics() -> Metrics {
    Metrics::new(&Limits::default(), &BackendInfo { name: "cpu", device: String::new(), parallelism: 1 })
}

fn context(text: &str) -> Option<Context> {
    Context::parse(text.as_bytes())
}

fn answered(at: Instant) -> SpanEnd {
    SpanEnd { at, code: None, reason: None }
}

#[test]
fn who_has_a_parent_is_recorded_if_and_only_if_the_parent_is() {
    let (none, _spans) = Tracer::new(0.0, metrics());
    let (all, _spans) = Tracer::new(1.0, metrics());
    let now = Instant::now();
    for tracer in [&none, &all] {
        let open = tracer.step(PARENT, None, now).expect("a sampled parent is followed, whatever the ratio");
        assert_eq!(open.trace_id, context(PARENT).expect("a context").trace_id);
        assert_eq!(open.parent, context(PARENT).map(|parent| parent.span_id));
        assert!(tracer.step(UNSAMPLED, None, now).is_none());
        assert!(tracer.step("", context(PARENT), now).is_some(), "the stream's is the step's");
        assert!(tracer.step(UNSAMPLED, context(PARENT), now).is_none(), "but the step's own goes first");
        assert!(tracer.step("nonsense", context(UNSAMPLED), now).is_none(), "an invalid one is as none");
    }
    assert!(none.step("", None, now).is_none());
    assert!(all.step("", None, now).expect("recorded").parent.is_none());
}

#[test]
fn invalid_contexts_are_counted() {
    let metrics = metrics();
    let (tracer, _spans) = Tracer::new(0.0, metrics.clone());
    for text in ["x", "", PARENT, "00-00-00-00"] {
        let _ = tracer.step(text, None, Instant::now());
    }
    let _ = tracer.of_call([PARENT.as_bytes(), PARENT.as_bytes()].into_iter());
    let _ = tracer.of_call([].into_iter());
    let text = metrics.render();
    assert!(text.contains("croupier_trace_contexts_invalid_total 3"), "{text}");
}

#[test]
fn stages_fill_the_span_without_a_gap() {
    let (tracer, mut spans) = Tracer::new(1.0, metrics());
    let begun = Instant::now().checked_sub(Duration::from_secs(1)).expect("the machine is up for a second");
    let at = |ms: u64| begun + Duration::from_millis(ms);
    let mut open = tracer.step("", None, begun).expect("recorded");
    open.facts.backend = Some((at(2), at(5)));
    tracer.end(*open, answered(at(6)));
    let span = spans.try_recv().expect("a span");
    assert_eq!(span.count(), 4);
    let names: Vec<&str> = span.stages.iter().map(|stage| stage.1).collect();
    assert_eq!(names, ["queue", "backend", "reply"]);
    assert_eq!((span.stages[0].2, span.stages[2].3), span.time);
    let lasted: Vec<u128> = span.stages.iter().map(|stage| (stage.3 - stage.2).as_millis()).collect();
    assert_eq!(lasted, [2, 3, 1]);
    assert!(span.stages.windows(2).all(|pair| pair[0].3 == pair[1].2 && pair[0].0 != pair[1].0));
}

#[test]
fn a_full_queue_drops_and_counts() {
    let metrics = metrics();
    let (tracer, spans) = Tracer::new(1.0, metrics.clone());
    let now = Instant::now();
    for _ in 0..MAX_WAITING + 3 {
        tracer.end(*tracer.step("", None, now).expect("recorded"), answered(now));
    }
    assert_eq!(spans.len(), MAX_WAITING);
    drop(spans);
    tracer.end(*tracer.step("", None, now).expect("recorded"), answered(now));
    let text = metrics.render();
    assert!(text.contains("croupier_trace_spans_total{result=\"dropped\"} 4"), "{text}");
}
