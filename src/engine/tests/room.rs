//! What takes room, and how long.

use super::*;
use crate::params::FieldError;
use crate::params::steering::NoRepeatNgram;
use crate::sampling::listed::{BeyondTopN, Listed};
use crate::sampling::order::Candidate;
use std::cell::Cell;

#[test]
fn room_is_taken_and_given_back() {
    let mut bench = Bench::new(|limits| {
        (limits.max_queued_steps, limits.max_bytes_in_flight, limits.max_rows_per_step) = (2, 1 << 14, 1);
    });
    let of = |message_bytes| Step { message_bytes, ..step(3, vec![], &[]) };
    let refused = |bench: &Bench, step: Step| bench.permits(&step, false).err().map(|refusal| refusal.reason().name());
    assert_eq!(refused(&bench, of((1 << 14) + 1)), Some("BYTES_IN_FLIGHT"));
    let shared = Step { logits: block(1), message_bytes: 64, ..step(1, vec![], &[1; 17]) };
    assert_eq!(refused(&bench, shared), Some("ROWS_IN_FLIGHT"));
    let mut replies = bench.stream(1);
    bench.submit(1, step(1, opens(&[1]), &[1]));
    bench.submit(1, step(2, opens(&[2]), &[2]));
    assert_eq!(refused(&bench, step(3, vec![], &[3])), Some("QUEUE_FULL"));
    bench.run();
    bench.run();
    assert_eq!(ids(&mut replies), [1, 2]);
    assert_eq!(refused(&bench, of(1 << 14)), None);
}

#[test]
fn replies_that_nobody_reads_are_counted() {
    let mut bench = Bench::new(|limits| limits.max_bytes_in_flight = 1 << 15);
    let used = |bench: &Bench| bench.admission.bytes_in_flight().used();
    let mut replies = bench.stream(1);
    let logprobs = LogprobsParams { top_n: VOCAB, mode: LogprobsMode::Raw, token_ids: Vec::new() };
    let asks = charged(sequence(|params| params.logprobs = Some(logprobs)));
    bench.submit(1, step(1, vec![Open { sequence_id: 1, sequence: asks }], &[]));
    bench.run();
    assert_eq!(ids(&mut replies), [1]);
    bench.submit(1, step(1, vec![], &[1]));
    bench.run();
    let each = used(&bench);
    assert!(each > 8 * VOCAB as usize, "{each} bytes do not even hold the logprobs");
    let mut unread = 1;
    // Without room for the reply itself a step is refused; without room for a possible report, its row is not sampled.
    let one = || step(0, vec![], &[1]);
    while bench.permits(&one(), false).is_ok() && used(&bench) == each * unread as usize {
        bench.submit(1, step(unread + 1, vec![], &[1]));
        bench.run();
        unread += 1;
    }
    assert!(unread > 3, "the limit is reached by replies, not by the first of them");
    assert!(used(&bench) <= 1 << 12, "{} bytes: a stream has an eighth", used(&bench));
    assert!(bench.permits_on(&one(), false, &bench.admission.replies()).is_ok(), "others have theirs");
    let failed = |reply: StepReply| matches!(&reply.work[0], Err(failure) if failure.status == RowStatus::ReplyBytes);
    let replies: Vec<bool> = std::iter::from_fn(|| replies.try_recv().ok()).map(failed).collect();
    let done = replies.iter().position(|&failed| failed).unwrap_or(replies.len());
    assert!(replies.len() == unread as usize && done + 1 >= replies.len(), "the last one at most: {replies:?}");
    assert_eq!(used(&bench), 0);
}

#[test]
fn who_has_read_all_gets_one_more_step_however_large() {
    let bench = Bench::new(|limits| limits.max_bytes_in_flight = 4096);
    let large = step(1, vec![], &[1; 64]);
    assert!(memory::of_places(&large, 0) > 4096);
    let first = bench.permits(&large, false).expect("nothing is unread");
    let refused =
        |bench: &Bench| bench.permits(&step(2, vec![], &[1]), false).err().map(|refusal| refusal.reason().name());
    assert_eq!(refused(&bench), Some("BYTES_IN_FLIGHT"));
    drop(first);
    assert_eq!(refused(&bench), None);
}

#[test]
fn what_waits_for_somebody_outside_leaves_room_for_steps() {
    const ALL: usize = 1 << 20;
    let bench = Bench::new(|limits| {
        (limits.max_bytes_in_flight, limits.max_message_bytes, limits.max_rows_per_step) = (ALL, ALL / 16, 4);
    });
    let admission = &bench.admission;
    let each = ALL / 16;
    let many = |take: &dyn Fn() -> Option<Permit>| -> Vec<Permit> { std::iter::from_fn(take).collect() };
    let coming = many(&|| admission.message(each).ok());
    assert_eq!(coming.len(), 6, "messages that do not come have three eighths");
    let held: Vec<_> = std::iter::from_fn(|| admission.held_place(each).ok()).collect();
    assert_eq!(held.len(), 4, "with steps that wait for their shards it is five eighths");
    let streams = [0; 4].map(|_| admission.replies());
    let unread: Vec<_> = streams.iter().map(|replies| many(&|| replies.take(each))).collect();
    assert_eq!(unread.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 0, 0], "a stream has one, all have two");
    // Steps that wait for nobody have the last eighth, even with replies that report lists, but only one at a time.
    let two = step(1, vec![], &[1, 2]);
    for replies in [&streams[2], &admission.answers()] {
        let mut one = bench.permits_on(&two, false, replies).expect("it is served");
        assert!(one.in_flight.reply.resize_alone(each), "and may tell what it likes");
    }
    let first = bench.permits_on(&two, false, &streams[2]).expect("it is served");
    assert!(bench.permits_on(&two, false, &streams[2]).is_ok(), "it is far from its share");
    let messages: Vec<_> = std::iter::from_fn(|| admission.place(each / 2).ok()).collect();
    assert_eq!(messages.len(), 3, "an eighth, but for these two");
    drop((first, messages, coming, held, unread));
    assert_eq!(admission.bytes_in_flight().used(), 0);
    // Held steps may have half of the rows in flight. Once they are released, their rows no longer count in that half.
    let hold = || std::iter::from_fn(|| bench.permits_on(&two, true, &admission.answers()).ok()).collect();
    let mut held: Vec<StepPermits> = hold();
    assert_eq!(held.len(), 16, "of 64 rows");
    assert!(bench.permits_on(&two, false, &admission.replies()).is_ok());
    held.iter_mut().for_each(|permits| admission.release(permits));
    let more: Vec<StepPermits> = hold();
    assert_eq!(more.len(), 16);
    assert!(bench.permits_on(&two, false, &admission.replies()).is_err(), "now there are 64");
}

/// A handle whose commands nobody carries out.
fn handle_of(limits: &Limits) -> (Handle, thread_channel::Receiver<Command>) {
    let (commands, inbox) = thread_channel::channel();
    let admission = Arc::new(Admission::new(limits, &Metrics::noop()));
    let (desk, thread) = (Arc::new(Desk::empty()), std::thread::current());
    let link = Arc::new(EngineLink { commands: Some(commands), desk, thread });
    let handle = Handle { link, admission, streams: Arc::default(), heartbeat: Heartbeat::new(), runs_anywhere: false };
    (handle, inbox)
}

#[test]
fn a_step_that_runs_alone_is_admitted_before_the_engine_hears_of_it() {
    let limits = Limits { max_sequences: 3, max_sequences_per_stream: 1, max_queued_steps: 2, ..Limits::default() };
    let (handle, inbox) = handle_of(&limits);
    let run = |ids: &[u64]| {
        let (place, step) = (handle.place(0)?, step(1, vec![], ids));
        handle.run_stateless(place, step, opens(ids).into_iter(), Metrics::noop().model("test"))
    };
    let refusal = |ids| {
        run(ids).err().and_then(|error| match error {
            Error::Refused(refusal) => Some(refusal),
            _ => None,
        })
    };
    // One stream may not have as many sequences. But a step that runs alone is bounded only by its rows and the server.
    let (two, one) = (run(&[1, 2]), run(&[]));
    assert_eq!((two.is_ok(), one.is_ok(), handle.open_sequences()), (true, true, 3), "none at all takes a place too");
    let queue_full = refusal(&[]);
    assert_eq!(inbox.try_iter().count(), 4, "each is opened and sent its step");
    // The commands were taken off the channel and dropped, and all their room with them.
    drop((two, one));
    assert_eq!((queue_full, handle.open_sequences()), (Some(Refusal::QueueFull), 0));
    inbox.try_iter().for_each(drop);
    let two = run(&[1, 2]);
    assert_eq!((refusal(&[1, 2]), handle.open_sequences()), (Some(Refusal::TooManySequences), 2));
    assert_eq!(inbox.try_iter().count(), 2, "of what is refused the engine hears nothing");
    drop(two);
}

/// Openings that take state when they are built; `built` counts them.
fn building<'a>(state: &'a Arc<Counter>, built: &'a Cell<usize>) -> impl ExactSizeIterator<Item = Open> + 'a {
    (0..3u32).map(move |id| {
        built.set(built.get() + 1);
        Open { sequence_id: id.into(), sequence: ChargedSequence::new(sequence(|_| ()), state) }
    })
}

#[test]
fn what_is_refused_builds_nothing_and_takes_nobodys_state() {
    let mut limits = Limits { max_bytes_in_flight: 1 << 14, max_rows_per_step: 1, ..Limits::default() };
    let one = ChargedSequence::PLACE + sequence(|_| ()).bytes_after(1);
    (limits.max_sequences, limits.max_state_bytes) = (3, 3 * one);
    let (handle, _inbox) = handle_of(&limits);
    let (state, built, model) = (handle.state(), Cell::new(0), || Metrics::noop().model("test"));
    let stream = handle.open_stream(Arc::new(handle.admit_stream().expect("room")), model(), 9).expect("a stream");
    let reason = |error: Error| error.reason().name();
    // A step with too many rows or bytes builds nothing, on a stream or alone.
    let shared = |rows: usize| Step { logits: block(1), ..step(1, vec![], &vec![1; rows]) };
    let long = || Step { message_bytes: (1 << 14) + 1, ..step(1, vec![], &[]) };
    for (step, expected) in [(shared(17), "ROWS_IN_FLIGHT"), (long(), "BYTES_IN_FLIGHT")] {
        let place = stream.place(0).expect("room");
        let refused = stream.admit(place, step, building(&state, &built)).expect_err("no room");
        assert_eq!(reason(refused), expected);
    }
    let place = handle.place(0).expect("room");
    let refused = handle.run_stateless(place, shared(17), building(&state, &built), model()).expect_err("no room");
    assert_eq!((reason(refused), built.get(), state.used()), ("ROWS_IN_FLIGHT", 0, 0));
    // An admitted step does. A step that runs alone without room for all of its sequences opens none.
    let place = stream.place(0).expect("room");
    let admitted = stream.admit(place, shared(1), building(&state, &built)).expect("room");
    assert_eq!((built.get(), state.used()), (3, 3 * one));
    let place = handle.place(0).expect("room");
    let refused = handle.run_stateless(place, shared(1), building(&state, &built), model()).expect_err("no state");
    assert_eq!((reason(refused), built.get()), ("STATE_BYTES", 4));
    drop(admitted);
    assert_eq!((state.used(), handle.open_sequences()), (0, 0));
}

#[test]
fn what_is_made_of_a_message_is_counted_while_it_waits() {
    let mut bench = Bench::new(|_| ());
    let _replies = bench.stream(1);
    let mut most = 0;
    let mut more = |change: &dyn Fn(&mut Step), bytes: usize| {
        let mut step = step(1, vec![], &[]);
        change(&mut step);
        // The places of its reply count too, and the texts that the reply will have.
        most += bytes + memory::of_places(&step, step.open.len());
        bench.submit(1, step);
        assert_eq!(bench.admission.bytes_in_flight().used(), most);
    };
    more(&|step| step.open = opens(&[1, 2]), 2 * size_of::<Open>());
    more(&|step| step.open = vec![wrong(3), wrong(4)], 2 * (size_of::<Open>() + TEXT));
    more(&|step| step.close = vec![1; 5], 5 * size_of::<u64>());
    more(&|step| step.work = vec![unfit(), unfit()], 2 * (size_of::<Work>() + TEXT));
    // A refusal by a limit takes no text.
    let full = || Open { sequence_id: 5, sequence: Err(OpenError::Refused(Refusal::StateBytes)) };
    more(&|step| step.open = vec![full()], size_of::<Open>());
}

#[test]
fn all_that_a_reply_says_is_counted_until_it_is_read() {
    let mut bench = Bench::new(|_| ());
    let mut replies = bench.stream(1);
    let mut reply = |open: Vec<Open>, work: Vec<Work>| {
        bench.submit(1, Step { open, work, logits: block(1), ..step(1, vec![], &[]) });
        bench.run();
        let (used, reply) = (bench.admission.bytes_in_flight().used(), replies.try_recv().expect("a reply"));
        assert_eq!(used, memory::of_reply(&reply.open, &reply.work));
        (used, reply)
    };
    assert_eq!(reply(vec![], vec![]).0, 0);
    assert_eq!(reply(opens(&[1, 2]), vec![]).0, 2 * size_of::<Opened>());
    assert_eq!(reply(opens(&[1]), vec![]).0, size_of::<Opened>(), "it is open, which takes no text");
    assert_eq!(reply(vec![wrong(3)], vec![]).0, size_of::<Opened>() + TEXT);
    assert_eq!(reply(vec![], vec![unfit()]).0, size_of::<Result<Done, RowFailure>>() + TEXT);
    // Scores count with their lists.
    let logprobs = LogprobsParams { top_n: 3, mode: LogprobsMode::Raw, token_ids: vec![1, 2] };
    let score = Ok(WorkKind::Score(Score { tokens: vec![1], logprobs }));
    let score = Work { sequence_id: None, first_row: 0, kind: score, masks: Masks::default() };
    let (scored, told) = reply(vec![], vec![score]);
    let Ok(Done::Scored(outputs)) = &told.work[0] else { panic!("expected a score, got {:?}", told.work[0]) };
    let lists = outputs[0].logprobs.as_ref().map_or(0, |told| size_of_val(&*told.top) + size_of_val(&*told.requested));
    assert!(lists > 0 && scored == size_of_val(&*told.work) + size_of_val(&**outputs) + lists, "{scored} {lists}");
    drop(told);
    // Proposed tokens count too.
    let sample = Work { sequence_id: Some(1), first_row: 0, kind: Ok(WorkKind::Sample), masks: Masks::default() };
    let (plain, mut reply) = reply(vec![], vec![sample]);
    let Ok(Done::Sampled { next, .. }) = &mut reply.work[0] else {
        panic!("expected a token, got {:?}", reply.work[0])
    };
    next.tokens = vec![1; 7];
    assert_eq!(memory::of_reply(&reply.open, &reply.work), plain + 7 * size_of::<u32>());
}

/// Bytes of the texts below.
const TEXT: usize = 1000;

fn wrong(sequence_id: u64) -> Open {
    let error = FieldError::new("field", "x".repeat(TEXT - "field".len()));
    Open { sequence_id, sequence: Err(OpenError::Invalid(error)) }
}

fn unfit() -> Work {
    let failure = RowFailure::new(RowStatus::InvalidWork, "x".repeat(TEXT));
    Work { sequence_id: None, first_row: 0, kind: Err(failure), masks: Masks::default() }
}

/// The status of a work of a new sequence whose state has so many bytes of room.
fn status_with(
    state: usize,
    sequence: &dyn Fn() -> Sequence,
    kind: WorkKind,
    logits: LogitsBlock,
) -> Option<RowStatus> {
    let mut bench = Bench::new(|_| ());
    let mut replies = bench.stream(1);
    let room = Counter::new(ChargedSequence::PLACE + state, Gauge::noop());
    let open = vec![Open { sequence_id: 1, sequence: ChargedSequence::new(sequence(), &room) }];
    let work = Work { sequence_id: Some(1), first_row: 0, kind: Ok(kind), masks: Masks::default() };
    bench.submit(1, Step { work: vec![work], logits, ..step(1, open, &[]) });
    bench.run();
    statuses(&replies.try_recv().expect("a reply"))[0]
}

/// A whole row of these few tokens would take a quarter of that.
#[test]
fn a_draft_token_of_a_listed_row_takes_the_room_of_its_list() {
    let new = || sequence(|_| ());
    let most = new().bytes_after(0) + VOCAB as usize * size_of::<(u32, u64)>();
    let status = |state| {
        let entries = (0..VOCAB).map(|token| Candidate { logit: 0.0, token }).collect();
        let row = Listed::new(VOCAB, entries, f32::NEG_INFINITY, true, BeyondTopN::Mark).expect("a row");
        let logits = LogitsBlock::empty(Dtype::F32, VOCAB).with_listed(ListedRows::new(vec![Ok(row)]));
        status_with(state, &new, WorkKind::Draft(DraftWork { restart: false, parent: None }), logits)
    };
    assert_eq!([most, most - 1].map(status), [None, Some(RowStatus::HistoryLimit)]);
}

#[test]
fn a_verification_takes_room_for_all_tokens_that_it_may_emit() {
    const DRAFTED: usize = 100;
    let new = || {
        sequence(|params| {
            params.history.no_repeat_ngram = Some(Box::new(NoRepeatNgram { size: 3, ..Default::default() }))
        })
    };
    let most = new().bytes_after(DRAFTED + 1);
    assert!(most > new().bytes_after(DRAFTED) && most > new().bytes_after(1));
    let status = |state| {
        let tokens = vec![3; DRAFTED];
        let verify = VerifyWork { tokens, parents: None, from: DraftsFrom::Nowhere, measure: false };
        status_with(state, &new, WorkKind::Verify(verify), block(DRAFTED as u64 + 1))
    };
    assert_eq!([most, most - 1].map(status), [None, Some(RowStatus::HistoryLimit)]);
}

#[test]
fn steps_that_are_held_back_take_no_place_in_the_queue() {
    let bench = Bench::new(|limits| limits.max_queued_steps = 2);
    let one = || step(1, vec![], &[1]);
    let mut held = [0; 2].map(|_| bench.permits(&one(), true).expect("room"));
    assert!(bench.permits(&one(), true).is_err(), "they are bounded too");
    let others = [0; 2].map(|_| bench.permits(&one(), false).expect("the queue is empty"));
    // Released steps are queued, and nothing else is until there is room.
    held.iter_mut().for_each(|permits| bench.admission.release(permits));
    assert!(bench.permits(&one(), true).is_ok());
    drop(others);
    assert!(bench.permits(&one(), false).is_err());
    drop(held);
    assert!(bench.permits(&one(), false).is_ok());
}
