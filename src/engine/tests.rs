//! The engine's state machine without its thread: what forms a batch, and its results.

use super::admission::StepPermits;
use super::*;
use crate::backend::cpu::CpuBackend;
use crate::backend::{BackendInfo, RowJob, VerifyJob, VerifyResult};
use crate::error::Refusal;
use crate::grammar::{CompileDeadline, Grammars};
use crate::params::grammar::{GrammarKind, GrammarParams, GrammarStart};
use crate::params::report::ReportParams;
use crate::params::{LogprobsParams, ProposerKind, ProposerParams, SamplingParams};
use crate::permits::Counter;
use crate::sampling::logits::Dtype;
use crate::sampling::row::{LogprobsMode, RowResult};
use crate::sequence::rules::Rules;
use crate::sequence::table::ChargedSequence;
use crate::sequence::{OpenError, Sequence};
use crate::vocabulary::Vocabulary;
use metrics::Gauge;
use plan::{ENTRIES_A_SPARSE, MAX_EXPLAINED_LOGITS, MAX_LISTED_ENTRIES};
use std::time::{Duration, Instant};
use step::*;

mod aside;
mod aside_room;
mod batches;
mod desk;
mod room;

const VOCAB: u32 = 16;

/// The state, its admission, and a clock that stands still.
struct Bench {
    state: State,
    admission: Admission,
    /// Room for the replies of all streams, as if they were one.
    replies: Arc<Counter>,
    now: Instant,
}

impl Bench {
    fn new(change: impl FnOnce(&mut Limits)) -> Self {
        let mut limits = Limits::default();
        change(&mut limits);
        let admission = Admission::new(&limits, &Metrics::noop());
        let mut state = State::new(Arc::new(limits), Metrics::noop());
        // However busy the machine is, no step is set aside unless a test wants it.
        state.aside.set_grace(Duration::from_secs(60));
        let replies = admission.replies();
        Self { state, admission, replies, now: Instant::now() }
    }

    fn stream(&mut self, stream: StreamId) -> mpsc::Receiver<StepReply> {
        let (replies, receiver) = mpsc::channel(64);
        let (table, permit) = (self.admission.table(), Arc::new(self.admission.stream().expect("room")));
        let (origin, permits) = (Metrics::noop().model("test").into(), StreamPermits { _place: permit, _shown: None });
        let spec = StreamSpec { replies, origin, table, aside: Arc::new(self.admission.aside()), permits };
        self.state.apply(Command::Open { stream, spec: Box::new(spec) });
        receiver
    }

    fn submit(&mut self, stream: StreamId, step: Step) {
        let permits = self.permits(&step, false).expect("room");
        self.state.apply(Command::Step { stream, queued: Box::new(Queued { step, permits, weight: 0 }) });
    }

    /// The room of a step that already has its openings.
    fn permits(&self, step: &Step, held: bool) -> Result<StepPermits, Refusal> {
        self.permits_on(step, held, &self.replies)
    }

    /// The same on a stream with this room for replies.
    fn permits_on(&self, step: &Step, held: bool, replies: &Arc<Counter>) -> Result<StepPermits, Refusal> {
        let (admission, bytes) = (&self.admission, step.message_bytes);
        let place = if held { admission.held_place(bytes) } else { admission.place(bytes) }?;
        let mut permits = self.admission.step(place, step, step.open.len(), replies)?;
        permits.opened(&step.open);
        Ok(permits)
    }

    /// Runs one batch, and returns how many steps it took.
    fn run(&mut self) -> usize {
        self.run_on(&mut CpuBackend::new(1))
    }

    fn run_on(&mut self, backend: &mut dyn Backend) -> usize {
        let mut batch = self.state.gather(self.now);
        self.state.fill_masks(&mut batch);
        let steps = batch.steps.len();
        self.state.run(&mut batch, backend);
        self.state.commit(batch, self.now);
        steps
    }
}

fn sequence(change: impl FnOnce(&mut SamplingParams)) -> Sequence {
    let mut params = SamplingParams::default();
    change(&mut params);
    Sequence::open(Arc::new(Rules::new(params, &[])), 11, &[], &[])
}

fn charged(sequence: Sequence) -> Result<ChargedSequence, OpenError> {
    ChargedSequence::new(sequence, &Counter::new(1 << 20, Gauge::noop()))
}

fn opens(ids: &[u64]) -> Vec<Open> {
    ids.iter().map(|&sequence_id| Open { sequence_id, sequence: charged(sequence(|_| ())) }).collect()
}

fn block(rows: u64) -> LogitsBlock {
    let values: Vec<f32> = (0..rows * u64::from(VOCAB)).map(|i| (i * 7 % 13) as f32 / 4.0).collect();
    LogitsBlock::new(Dtype::F32.encode(&values).into(), Dtype::F32, VOCAB, 0).expect("whole rows")
}

fn step(id: u64, open: Vec<Open>, sample_ids: &[u64]) -> Step {
    let (kind, masks) = (|| Ok(WorkKind::Sample), Masks::default);
    let sample = |(first_row, &id)| Work { sequence_id: Some(id), first_row, kind: kind(), masks: masks() };
    let work: Vec<_> = (0..).zip(sample_ids).map(sample).collect();
    let rows = work.len();
    let (logits, message_bytes) = (block(rows as u64), rows * VOCAB as usize * size_of::<f32>());
    Step {
        id,
        close: Vec::new(),
        open,
        work,
        logits,
        message_bytes,
        received: Instant::now(),
        deadline: None,
        slots: None,
    }
}

/// Opens sequences whose texts have to match a grammar.
struct Matching {
    grammars: Grammars,
    params: Arc<GrammarParams>,
    state: Arc<Counter>,
}

impl Matching {
    /// A grammar that allows the tokens 0 to 3 only, fifty times.
    fn new() -> Self {
        let texts: Vec<_> = (0..VOCAB as u8).map(|token| Some(vec![b'a' + token])).collect();
        let grammars = Grammars::new(Arc::new(Vocabulary::new(&texts, b"")));
        let (text, start) = ("[a-d]{50}".to_owned(), GrammarStart::default());
        let params = Arc::new(GrammarParams { kind: GrammarKind::Regex, text, start });
        Self { grammars, params, state: Counter::new(usize::MAX, Gauge::noop()) }
    }

    fn open(&self, sequence_id: u64) -> Open {
        self.open_with(sequence_id, |_| ())
    }

    /// The same with drafts of what the grammar forces.
    fn open_drafting(&self, sequence_id: u64) -> Open {
        self.open_with(sequence_id, |params| params.proposer = Some(ProposerParams::new(ProposerKind::Grammar)))
    }

    fn open_with(&self, sequence_id: u64, change: impl FnOnce(&mut SamplingParams)) -> Open {
        let mut params = SamplingParams::default();
        change(&mut params);
        params.history.grammar = Some(Arc::clone(&self.params));
        let rules =
            Rules::new(params, &[15]).with_grammar(Some(&self.grammars), &self.state, &CompileDeadline::default());
        let sequence = Sequence::open(Arc::new(rules.expect("it is right")), 11, &[], &[]);
        let sequence = sequence.with_grammar_text(&Arc::default(), VOCAB as usize, &[]).expect("it begins");
        Open { sequence_id, sequence: ChargedSequence::new(sequence, &self.state) }
    }
}

fn explained(params: &mut SamplingParams) {
    params.temperature = 0.0;
    let wanted = ReportParams { why_not_token_ids: vec![0], ..ReportParams::default() };
    params.samplers.report = Some(Box::new(wanted));
}

/// Hands a step to the engine.
fn submit(stream: &StreamHandle, step: Step, open: Vec<Open>) -> Result<(), Error> {
    let place = stream.place(step.message_bytes)?;
    stream.hand_over(stream.admit(place, step, open.into_iter())?)
}

fn statuses(reply: &StepReply) -> Vec<Option<RowStatus>> {
    reply.work.iter().map(|work| work.as_ref().err().map(|failure| failure.status)).collect()
}

fn ids(replies: &mut mpsc::Receiver<StepReply>) -> Vec<u64> {
    std::iter::from_fn(|| replies.try_recv().ok()).map(|reply| reply.id).collect()
}

#[test]
fn rows_past_the_deadline_change_nothing() {
    let mut bench = Bench::new(|_| ());
    let mut replies = bench.stream(1);
    let mut late = step(1, opens(&[1]), &[1]);
    late.deadline = Some(bench.now - Duration::from_millis(1));
    bench.submit(1, late);
    let mut timely = step(2, vec![], &[1]);
    timely.deadline = Some(bench.now);
    bench.submit(1, timely);
    // A reply settles the room of its step's sequences, so what fails is alone with them in its batch as well.
    assert_eq!((bench.run(), bench.run()), (1, 1));
    assert_eq!(statuses(&replies.try_recv().expect("a reply")), [Some(RowStatus::DeadlineExceeded)]);
    let reply = replies.try_recv().expect("a reply");
    assert_eq!(statuses(&reply), [None], "the sequence was opened, and its position is still 0");
}

#[test]
fn a_stream_that_is_gone_costs_nothing() {
    let mut bench = Bench::new(|_| ());
    let gone = bench.stream(1);
    bench.submit(1, step(1, opens(&[1]), &[1]));
    drop(gone);
    assert_eq!(bench.run(), 0, "nobody waits for its steps");
    bench.state.apply(Command::Close { stream: 1 });
    let mut replies = bench.stream(2);
    bench.submit(2, step(1, opens(&[1, 2, 3]), &[1]));
    bench.run();
    assert_eq!((ids(&mut replies), bench.admission.open_sequences()), (vec![1], 3));
    bench.submit(2, step(2, vec![], &[1]));
    bench.state.apply(Command::Close { stream: 2 });
    assert_eq!((bench.state.streams(), bench.admission.open_sequences()), (0, 0));
    assert_eq!((bench.run(), bench.permits(&step(1, vec![], &[]), false).is_ok()), (0, true));
}

#[test]
fn results_of_a_stream_that_went_meanwhile_are_no_other_streams() {
    let mut bench = Bench::new(|_| ());
    let (_gone, mut replies) = (bench.stream(1), bench.stream(2));
    let only = |token| Open { sequence_id: 1, sequence: charged(sequence(|p| p.allowed_token_ids = vec![token])) };
    bench.submit(1, step(1, vec![only(3)], &[1]));
    bench.submit(2, step(2, vec![only(5)], &[1]));
    let mut batch = bench.state.gather(bench.now);
    bench.state.run(&mut batch, &mut CpuBackend::new(1));
    bench.state.apply(Command::Close { stream: 1 });
    bench.state.commit(batch, bench.now);
    match replies.try_recv().expect("a reply").work.pop() {
        Some(Ok(Done::Sampled { output, .. })) => assert_eq!(output.token, 5),
        other => panic!("expected a token, got {other:?}"),
    }
}

struct Panics;

impl Backend for Panics {
    fn info(&self) -> BackendInfo {
        CpuBackend::new(1).info()
    }

    fn run(&mut self, _: &[RowJob<'_>]) -> Vec<RowResult> {
        panic!("a test of panics");
    }

    fn verify(&mut self, _: &[VerifyJob<'_>]) -> Vec<VerifyResult> {
        panic!("a test of panics");
    }
}

#[test]
fn a_panic_of_the_backend_fails_its_rows_and_changes_nothing() {
    let mut bench = Bench::new(|_| ());
    let mut replies = bench.stream(1);
    bench.submit(1, step(1, opens(&[1]), &[1]));
    bench.run_on(&mut Panics);
    assert_eq!(statuses(&replies.try_recv().expect("a reply")), [Some(RowStatus::Internal)]);
    bench.submit(1, step(2, vec![], &[1]));
    bench.run();
    bench.submit(1, step(3, opens(&[2]), &[2]));
    bench.run();
    let tokens: Vec<u32> = std::iter::from_fn(|| replies.try_recv().ok())
        .map(|mut reply| match reply.work.pop() {
            Some(Ok(Done::Sampled { output, .. })) => output.token,
            other => panic!("expected a token, got {other:?}"),
        })
        .collect();
    assert_eq!(tokens[0], tokens[1], "the sequence is where it was before the panic");
}

#[test]
fn work_on_an_id_whose_opening_failed_touches_no_other_text() {
    let mut bench = Bench::new(|_| ());
    let mut replies = bench.stream(1);
    bench.submit(1, step(1, opens(&[1]), &[]));
    bench.submit(1, step(2, opens(&[1]), &[1]));
    // That the step is late does not hide that its sequence could not be opened.
    let late = Some(bench.now - Duration::from_millis(1));
    bench.submit(1, Step { deadline: late, ..step(3, opens(&[1]), &[1]) });
    assert_eq!((bench.run(), bench.run()), (2, 1));
    let _opened = replies.try_recv().expect("a reply");
    for _ in 0..2 {
        let reply = replies.try_recv().expect("a reply");
        assert_eq!(reply.open[0].result, Err(OpenError::AlreadyExists));
        assert_eq!(statuses(&reply), [Some(RowStatus::UnknownSequence)]);
    }
}

/// The rows behind a bad one have results too, which are not those of the next work.
#[test]
fn a_work_that_fails_leaves_the_next_one_its_results() {
    let mut bench = Bench::new(|_| ());
    let mut replies = bench.stream(1);
    let score = |first_row, tokens| {
        let logprobs = LogprobsParams { top_n: 0, mode: LogprobsMode::Raw, token_ids: Vec::new() };
        let kind = Ok(WorkKind::Score(Score { tokens, logprobs }));
        Work { sequence_id: None, first_row, kind, masks: Masks::default() }
    };
    let mut values = vec![0.0; 4 * VOCAB as usize];
    values[3] = f32::NAN;
    let logits = LogitsBlock::new(Dtype::F32.encode(&values).into(), Dtype::F32, VOCAB, 0).expect("whole rows");
    bench.submit(1, Step { work: vec![score(0, vec![1, 2, 3]), score(3, vec![4])], logits, ..step(1, vec![], &[]) });
    bench.run();
    let work = replies.try_recv().expect("a reply").work;
    assert!(matches!(&work[0], Err(failure) if failure.status == RowStatus::NanLogits), "{:?}", work[0]);
    let Ok(Done::Scored(outputs)) = &work[1] else { panic!("expected a score, got {:?}", work[1]) };
    assert_eq!(outputs.iter().map(|output| output.token).collect::<Vec<_>>(), [4]);
}

/// Histories that look ahead are kept for one round at a time. The bound of a round must not show in the results.
#[test]
fn processed_scores_do_not_depend_on_rounds() {
    let tokens: Vec<u32> = (0..8).map(|i| i % 3).collect();
    let logprobs = LogprobsParams { top_n: 2, mode: LogprobsMode::Processed, token_ids: vec![] };
    let kind = WorkKind::Score(Score { tokens, logprobs });
    let text = sequence(|p| (p.frequency_penalty, p.bad_words) = (0.5, vec![vec![1, 2], vec![0, 1, 3]]));
    let logits = block(8);
    let row = |row: usize| logits.row(row as u64).expect("a row");
    let source = |at| rows::RowSource::new(row(at), None, &kind, Some(&text), at).expect("a source");
    let sources: Vec<_> = (0..8).map(source).collect();
    let mut backend = CpuBackend::new(1);
    let whole = rows::run_rows(&sources, usize::MAX, &mut backend);
    assert_eq!(whole.len(), 8);
    for bound in [0, 1, 5] {
        assert_eq!(rows::run_rows(&sources, bound, &mut backend), whole);
    }
    // Each result is what the sequence would give if it had emitted the earlier tokens.
    let WorkKind::Score(score) = &kind else { unreachable!() };
    let mut grown = text.clone();
    for (at, result) in whole.iter().enumerate() {
        let single = Score { tokens: vec![score.tokens[at]], logprobs: score.logprobs.clone() };
        let single = WorkKind::Score(single);
        let source = rows::RowSource::new(row(at), None, &single, Some(&grown), 0);
        assert_eq!(&rows::run_rows(&[source.expect("a source")], 0, &mut backend)[0], result);
        grown.commit(score.tokens[at]);
    }
}

#[test]
fn the_thread_ends_with_its_last_handle() {
    let limits = Arc::new(Limits::default());
    let (handle, thread) = Engine::start(Box::new(CpuBackend::new(1)), limits, Metrics::noop());
    let stream = handle.open_stream(Arc::new(handle.admit_stream().expect("room")), Metrics::noop().model("test"), 1);
    let mut stream = stream.expect("a stream");
    drop(handle);
    submit(&stream, step(1, vec![], &[1]), opens(&[1])).expect("room");
    let reply = stream.replies.blocking_recv().expect("a reply");
    assert_eq!(statuses(&reply), [None]);
    drop(stream);
    thread.join().expect("the thread ends");
}

/// A backend that reports when it is called, and answers only when it is allowed to.
#[derive(Debug)]
struct Slow(CpuBackend, thread_channel::Sender<()>, thread_channel::Receiver<()>);

impl Backend for Slow {
    fn info(&self) -> BackendInfo {
        self.0.info()
    }

    fn run(&mut self, jobs: &[RowJob<'_>]) -> Vec<RowResult> {
        let _ = (self.1.send(()), self.2.recv());
        self.0.run(jobs)
    }

    fn verify(&mut self, jobs: &[VerifyJob<'_>]) -> Vec<VerifyResult> {
        self.0.verify(jobs)
    }
}

#[test]
fn its_pulse_says_how_long_it_is_at_a_batch() {
    let ((asked, was_asked), (may, may_answer)) = (thread_channel::channel(), thread_channel::channel());
    let backend = Box::new(Slow(CpuBackend::new(1), asked, may_answer));
    let (handle, _thread) = Engine::start(backend, Arc::new(Limits::default()), Metrics::noop());
    let heartbeat = handle.heartbeat();
    let stream = handle.open_stream(Arc::new(handle.admit_stream().expect("room")), Metrics::noop().model("test"), 1);
    let mut stream = stream.expect("a stream");
    submit(&stream, step(1, vec![], &[1]), opens(&[1])).expect("room");
    was_asked.recv().expect("the backend is asked");
    let before = heartbeat.busy_for().expect("it is at a batch");
    std::thread::sleep(Duration::from_millis(5));
    assert!(heartbeat.busy_for().expect("it still is") >= before + Duration::from_millis(4));
    may.send(()).expect("it waits");
    assert_eq!(statuses(&stream.replies.blocking_recv().expect("a reply")), [None]);
    // The engine becomes idle soon, once it has looked for more work.
    while heartbeat.busy_for().is_some() {
        std::thread::yield_now();
    }
}
