//! Which thread runs a step: the one that brings a small step to an idle engine, or the engine's own.

use super::*;
use crate::backend::DeviceLost;
use crate::engine::listed::ListedRows;
use crate::sampling::listed::{BeyondTopN, Listed};
use crate::sampling::order::Candidate;
use std::sync::Mutex;
use std::thread::ThreadId;

/// A backend that records which threads drive it, and that is lost on demand.
#[derive(Debug, Clone)]
struct SpyBackend {
    anywhere: bool,
    is_lost: bool,
    threads: Arc<Mutex<Vec<ThreadId>>>,
    /// The threads that drove it with a row of more than `RUN_HERE_BYTES`.
    at_large: Arc<Mutex<Vec<ThreadId>>>,
}

impl SpyBackend {
    fn new() -> Self {
        Self { anywhere: true, is_lost: false, threads: Arc::default(), at_large: Arc::default() }
    }

    fn threads(&self) -> Vec<ThreadId> {
        std::mem::take(&mut self.threads.lock().expect("no panic"))
    }
}

impl Backend for SpyBackend {
    fn info(&self) -> BackendInfo {
        CpuBackend::new(1).info()
    }

    fn runs_anywhere(&self) -> bool {
        self.anywhere
    }

    fn run(&mut self, jobs: &[RowJob<'_>]) -> Vec<RowResult> {
        let here = std::thread::current().id();
        self.threads.lock().expect("no panic").push(here);
        if jobs.iter().any(|job| job.logits.byte_len() > RUN_HERE_BYTES) {
            self.at_large.lock().expect("no panic").push(here);
        }
        if self.is_lost {
            std::panic::panic_any(DeviceLost);
        }
        CpuBackend::new(1).run(jobs)
    }

    fn verify(&mut self, jobs: &[VerifyJob<'_>]) -> Vec<VerifyResult> {
        CpuBackend::new(1).verify(jobs)
    }
}

/// An engine with one stream.
fn start(backend: impl Backend + 'static) -> (Handle, StreamHandle, std::thread::JoinHandle<()>) {
    let (handle, thread) = Engine::start(Box::new(backend), Arc::new(Limits::default()), Metrics::noop());
    let permit = Arc::new(handle.admit_stream().expect("room"));
    let stream = handle.open_stream(permit, Metrics::noop().model("test"), 2).expect("a stream");
    (handle, stream, thread)
}

/// The engine's thread looks at a new stream, so it may be at the desk for a moment.
fn until_run_here(spy: &SpyBackend, stream: &mut StreamHandle) {
    until_run_here_from(1, spy, stream);
}

fn until_run_here_from(first: u64, spy: &SpyBackend, stream: &mut StreamHandle) {
    let here = std::thread::current().id();
    spy.threads();
    let started = std::time::Instant::now();
    for id in first.. {
        submit(stream, step(id, vec![], &[1]), if id == 1 { opens(&[1]) } else { vec![] }).expect("room");
        assert_eq!(stream.replies.blocking_recv().expect("a reply").id, id);
        if spy.threads() == [here] {
            return;
        }
        assert!(started.elapsed().as_secs() < 60, "never run here");
        std::thread::yield_now();
    }
}

#[test]
fn a_small_step_is_run_by_whoever_brings_it() {
    let spy = SpyBackend::new();
    let (_handle, mut stream, _thread) = start(spy.clone());
    until_run_here(&spy, &mut stream);
}

#[test]
fn a_large_message_and_a_backend_that_stays_where_it_is_go_to_the_engines_thread() {
    for (anywhere, message_bytes) in [(true, RUN_HERE_MESSAGE_BYTES + 1), (false, 0)] {
        let spy = SpyBackend { anywhere, ..SpyBackend::new() };
        let (_handle, mut stream, thread) = start(spy.clone());
        for id in 1..100 {
            let open = if id == 1 { opens(&[1]) } else { vec![] };
            submit(&stream, Step { message_bytes, ..step(id, vec![], &[1]) }, open).expect("room");
            stream.replies.blocking_recv().expect("a reply");
        }
        assert_eq!(spy.threads(), vec![thread.thread().id(); 99], "{anywhere} {message_bytes}");
    }
}

/// Leaves a step at the desk without waking anybody.
fn leave(stream: &StreamHandle, step: Step) {
    let place = stream.place(step.message_bytes).expect("room");
    let Admitted { queued, .. } = stream.admit(place, step, vec![].into_iter()).expect("room");
    let left = Command::Step { stream: stream.stream, queued: Box::new(queued) };
    stream.engine.link.send_quietly(left).expect("the engine runs");
}

/// A thread that brings a small step finds what others have left, before the engine's thread has come for it.
#[test]
fn large_steps_that_others_left_are_run_by_the_engines_thread() {
    let spy = SpyBackend::new();
    let (handle, mut stream, thread) = start(spy.clone());
    until_run_here(&spy, &mut stream);
    let vocab_size = (RUN_HERE_BYTES / size_of::<f32>() + 1) as u32;
    let row = || LogitsBlock::new(vec![0; RUN_HERE_BYTES + 4].into(), Dtype::F32, vocab_size, 0).expect("one row");
    for id in (1_000_000..1_000_040).step_by(2) {
        leave(&stream, Step { logits: row(), ..step(id, vec![], &[1]) });
        submit(&stream, step(id + 1, vec![], &[]), vec![]).expect("room");
        for id in [id, id + 1] {
            assert_eq!(stream.replies.blocking_recv().expect("a reply").id, id);
        }
    }
    assert_eq!(*spy.at_large.lock().expect("no panic"), vec![thread.thread().id(); 20]);
    // Afterwards small steps are run here as before, even if a large one was dropped with its stream.
    let permit = Arc::new(handle.admit_stream().expect("room"));
    let gone = handle.open_stream(permit, Metrics::noop().model("test"), 1).expect("a stream");
    leave(&gone, Step { logits: row(), ..step(1, vec![], &[1]) });
    drop(gone);
    until_run_here_from(2_000_000, &spy, &mut stream);
}

/// This holds however small the rows are, on the stream that brings such a step and on one that finds it.
#[test]
fn what_takes_longer_than_its_rows_tell_is_run_by_the_engines_thread() {
    let spy = SpyBackend::new();
    let (handle, mut stream, thread) = start(spy.clone());
    until_run_here(&spy, &mut stream);
    let score =
        || Score { tokens: vec![0], logprobs: LogprobsParams { top_n: 1, mode: LogprobsMode::Raw, token_ids: vec![] } };
    let scores = |id| {
        let work =
            Work { sequence_id: Some(1), first_row: 0, kind: Ok(WorkKind::Score(score())), masks: Masks::default() };
        Step { work: vec![work], ..step(id, vec![], &[1]) }
    };
    for id in (1_000_000..1_000_040).step_by(2) {
        submit(&stream, scores(id), vec![]).expect("room");
        stream.replies.blocking_recv().expect("a reply");
        leave(&stream, scores(id + 1));
        stream.engine.link.desk.run_here().then(|| stream.engine.link.thread.unpark());
        stream.replies.blocking_recv().expect("a reply");
    }
    assert_eq!(spy.threads(), vec![thread.thread().id(); 40]);
    // Any step of a stream with such a sequence counts, because which steps name the sequence is known only later.
    let permit = Arc::new(handle.admit_stream().expect("room"));
    let mut other = handle.open_stream(permit, Metrics::noop().model("test"), 2).expect("a stream");
    for id in 1..=40 {
        let open = Open { sequence_id: 1, sequence: charged(sequence(explained)) };
        submit(&other, step(id, vec![], &[1]), if id == 1 { vec![open] } else { vec![] }).expect("room");
        other.replies.blocking_recv().expect("a reply");
    }
    assert_eq!(spy.threads(), vec![thread.thread().id(); 40]);
    until_run_here_from(2_000_000, &spy, &mut stream);
}

/// A listed row costs time for its tokens, and for all that its sequence knows of tokens.
#[test]
fn short_lists_are_run_here_unless_their_sequences_know_much() {
    let spy = SpyBackend::new();
    let (_handle, mut stream, thread) = start(spy.clone());
    until_run_here(&spy, &mut stream);
    let vocab_size = 1 << 16;
    let banned = |count: u32| {
        let ban = move |params: &mut SamplingParams| params.banned_token_ids = (1..=count).collect();
        Open { sequence_id: 2, sequence: ChargedSequence::new(sequence(ban), &Counter::new(1 << 30, Gauge::noop())) }
    };
    let listed = |id, tokens: u32| {
        let entries = (0..tokens).map(|token| Candidate { logit: token as f32 * -1e-3, token }).collect();
        let row = Listed::new(vocab_size, entries, -20.0, true, BeyondTopN::Mark).expect("a row");
        let logits = LogitsBlock::empty(Dtype::F32, vocab_size).with_listed(ListedRows::new(vec![Ok(row)]));
        Step { logits, ..step(id, vec![], &[2]) }
    };
    // Bans, listed tokens, and whether so much is run here. A row counts 24 KiB, and one KiB more for each token; the
    // total has to be within 2 MiB.
    for (at, (bans, tokens, here)) in
        [(10, 2, true), (60_000, 2, false), (10, 2_025, false), (10, 2_022, true)].into_iter().enumerate()
    {
        let first = 1_000_000 * (at as u64 + 1);
        let expected = if here { std::thread::current().id() } else { thread.thread().id() };
        until_run_here_from(first, &spy, &mut stream);
        for turn in 0..1000 {
            // The first step opens the sequence, the others use it.
            let open = if turn == 0 { vec![banned(bans)] } else { vec![] };
            submit(&stream, listed(first + 900_000 + turn, tokens), open).expect("room");
            let reply = stream.replies.blocking_recv().expect("a reply");
            assert_eq!(statuses(&reply), [None], "{:?}", reply.work);
            let ran = spy.threads();
            // The engine's thread may be at the desk for a moment, and then runs a short step itself.
            if here && ran != [expected] {
                assert!(turn < 999, "{bans} bans and {tokens} tokens never ran here");
                std::thread::yield_now();
                continue;
            }
            assert_eq!(ran, [expected], "{bans} bans and {tokens} tokens");
            if turn > 0 {
                break;
            }
        }
        submit(&stream, Step { close: vec![2], ..step(first + 990_000, vec![], &[]) }, vec![]).expect("room");
        stream.replies.blocking_recv().expect("a reply");
    }
}

/// Steps from many threads at once: none is lost, whichever thread runs it.
#[test]
fn no_step_is_left_lying() {
    let spy = SpyBackend::new();
    let (handle, stream, thread) = start(spy.clone());
    drop(stream);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let permit = Arc::new(handle.admit_stream().expect("room"));
                let mut stream = handle.open_stream(permit, Metrics::noop().model("test"), 2).expect("a stream");
                for id in 1..=2_000 {
                    let open = if id == 1 { opens(&[1]) } else { vec![] };
                    let message_bytes = if id % 3 == 0 { RUN_HERE_MESSAGE_BYTES + 1 } else { 0 };
                    submit(&stream, Step { message_bytes, ..step(id, vec![], &[1]) }, open).expect("room");
                    let reply = stream.replies.blocking_recv().expect("a reply");
                    assert_eq!((reply.id, statuses(&reply)), (id, vec![None]));
                }
            });
        }
    });
    let threads = spy.threads();
    assert!(threads.contains(&thread.thread().id()) && threads.iter().any(|&id| id != thread.thread().id()));
    // The last handle ends the engine, though nobody unparks it for a step.
    drop(handle);
    thread.join().expect("it ends");
}

#[test]
fn a_device_lost_elsewhere_ends_the_engines_thread_with_it() {
    let spy = SpyBackend { is_lost: true, ..SpyBackend::new() };
    let (handle, mut stream, thread) = start(spy.clone());
    let _ = submit(&stream, step(1, vec![], &[1]), opens(&[1]));
    assert!(stream.replies.blocking_recv().is_none(), "no answer from a broken device");
    assert!(thread.join().expect_err("it panics too").is::<DeviceLost>());
    assert!(matches!(submit(&stream, step(2, vec![], &[1]), vec![]), Err(Error::EngineStopped)));
    drop(handle);
}

/// A backend that waits until it is told to go on, in a way that uses up wake-ups.
#[derive(Debug)]
struct Waits {
    begun: std::sync::mpsc::Sender<()>,
    go_on: std::sync::mpsc::Receiver<()>,
}

impl Backend for Waits {
    fn info(&self) -> BackendInfo {
        CpuBackend::new(1).info()
    }

    fn run(&mut self, jobs: &[RowJob<'_>]) -> Vec<RowResult> {
        self.begun.send(()).expect("somebody waits");
        self.go_on.recv().expect("somebody says so");
        CpuBackend::new(1).run(jobs)
    }

    fn verify(&mut self, jobs: &[VerifyJob<'_>]) -> Vec<VerifyResult> {
        CpuBackend::new(1).verify(jobs)
    }
}

/// A step that comes while a batch waits is seen, although the wake-up that it left ended a wait inside the batch.
#[test]
fn what_comes_while_a_batch_waits_is_run_behind_it() {
    let ((begun, has_begun), (go, go_on)) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
    let (_handle, mut stream, _thread) = start(Waits { begun, go_on });
    submit(&stream, step(1, vec![], &[1]), opens(&[1])).expect("room");
    has_begun.recv().expect("it begins");
    submit(&stream, step(2, vec![], &[1]), vec![]).expect("room");
    // Gives the thread time to park again before it is told to go on.
    std::thread::sleep(std::time::Duration::from_millis(50));
    go.send(()).expect("it waits");
    assert_eq!(stream.replies.blocking_recv().expect("a reply").id, 1);
    has_begun.recv_timeout(std::time::Duration::from_secs(20)).expect("the second step is seen");
    go.send(()).expect("it waits");
    assert_eq!(stream.replies.blocking_recv().expect("a reply").id, 2);
}
