//! Steps that wait for the masks of their rows, outside the batch that took them.

use super::*;
use crate::engine::aside::LOOK;
use crate::engine::desk::TurnEnd;
use crate::grammar::{hold_up, while_busy};

/// A state that sets steps aside at once, and grammars whose threads are busy while `work` runs.
pub(super) fn while_masks_lack(
    change: impl FnOnce(&mut Limits),
    work: impl FnOnce(&mut Bench, &Matching),
) -> (Bench, Matching) {
    let (mut bench, matching) = (Bench::new(change), Matching::new());
    bench.state.aside.set_grace(Duration::ZERO);
    // The first text makes the threads.
    drop(matching.open(0));
    while_busy(&matching.grammars, || work(&mut bench, &matching));
    (bench, matching)
}

pub(super) fn until_it_has_work(bench: &mut Bench) {
    let started = Instant::now();
    while !bench.state.has_work() {
        assert!(started.elapsed().as_secs() < 60, "the masks never came");
        std::thread::yield_now();
    }
}

fn tokens(replies: &mut mpsc::Receiver<StepReply>) -> Vec<u32> {
    let replies = std::iter::from_fn(|| replies.try_recv().ok());
    let token = |done: Result<Done, RowFailure>| match done {
        Ok(Done::Sampled { output, .. }) => output.token,
        other => panic!("expected a token, got {other:?}"),
    };
    replies.flat_map(|reply| reply.work).map(token).collect()
}

#[test]
fn steps_whose_masks_take_long_hold_up_no_other_stream() {
    let replies = std::cell::RefCell::new(None);
    let (mut bench, matching) = while_masks_lack(
        |_| (),
        |bench, matching| {
            let (mut one, mut two) = (bench.stream(1), bench.stream(2));
            let [mut first, mut second] = [opens(&[2]), opens(&[1])];
            first.insert(0, matching.open(1));
            bench.submit(1, step(1, first, &[1]));
            bench.submit(1, step(2, vec![], &[2]));
            bench.submit(2, step(3, std::mem::take(&mut second), &[1]));
            assert_eq!((bench.run(), ids(&mut one), ids(&mut two)), (1, vec![], vec![3]));
            // Its stream waits with it.
            bench.submit(1, step(4, vec![], &[2]));
            assert!(!bench.state.has_work());
            bench.submit(2, step(5, vec![], &[1]));
            assert_eq!((bench.run(), ids(&mut one), ids(&mut two)), (1, vec![], vec![5]));
            assert!(!bench.state.has_work());
            replies.replace(Some(one));
        },
    );
    until_it_has_work(&mut bench);
    // Step 4 works on the sequence of step 2, so it waits for the batch behind.
    assert_eq!((bench.run(), bench.run()), (2, 1));
    let mut one = replies.take().expect("it was left here");
    let mut found = Vec::new();
    while let Ok(reply) = one.try_recv() {
        assert_eq!(statuses(&reply), [None]);
        found.push(reply.id);
    }
    assert_eq!(found, [1, 2, 4]);
    assert!(!bench.state.has_work() && bench.state.aside.is_empty());
    drop(matching);
}

#[test]
fn tokens_are_those_of_a_step_that_did_not_wait() {
    let replies = std::cell::RefCell::new(None);
    let (mut bench, matching) = while_masks_lack(
        |_| (),
        |bench, matching| {
            let one = bench.stream(1);
            bench.submit(1, step(1, vec![matching.open(1), matching.open(2)], &[1, 2]));
            bench.submit(1, step(2, vec![], &[2, 1]));
            assert_eq!(bench.run(), 0);
            assert!(!bench.state.has_work(), "what is behind it waits as well");
            replies.replace(Some(one));
        },
    );
    let mut waited = replies.take().expect("it was left here");
    let mut direct = bench.stream(2);
    bench.submit(2, step(1, vec![matching.open(1), matching.open(2)], &[1, 2]));
    bench.submit(2, step(2, vec![], &[2, 1]));
    bench.state.aside.set_grace(Duration::from_secs(60));
    let mut found = Vec::new();
    while found.len() < 4 {
        until_it_has_work(&mut bench);
        bench.run();
        found.extend(tokens(&mut waited));
    }
    assert_eq!(found, tokens(&mut direct));
    assert!(found.iter().all(|&token| token < 4), "the grammar allows no others: {found:?}");
}

/// Its rows start when a batch takes it back.
#[test]
fn a_deadline_may_pass_meanwhile() {
    let replies = std::cell::RefCell::new(None);
    let (mut bench, _matching) = while_masks_lack(
        |_| (),
        |bench, matching| {
            let one = bench.stream(1);
            let deadline = Some(bench.now + Duration::from_secs(5));
            bench.submit(1, Step { deadline, ..step(1, vec![matching.open(1)], &[1]) });
            assert_eq!(bench.run(), 0);
            replies.replace(Some(one));
        },
    );
    bench.now += Duration::from_secs(6);
    until_it_has_work(&mut bench);
    bench.submit(1, step(2, vec![], &[1]));
    let mut one = replies.take().expect("it was left here");
    let mut found = Vec::new();
    while found.len() < 2 {
        until_it_has_work(&mut bench);
        bench.run();
        found.extend(std::iter::from_fn(|| one.try_recv().ok()).flat_map(|reply| statuses(&reply)));
    }
    assert_eq!(found, [Some(RowStatus::DeadlineExceeded), None]);
}

/// Otherwise each batch would wait, for as long as one stream is slow.
#[test]
fn a_batch_waits_for_a_stream_only_if_its_last_step_was_not_set_aside() {
    let one = std::cell::RefCell::new(None);
    let (bench, matching) = while_masks_lack(
        |_| (),
        |bench, matching| {
            one.replace(Some(bench.stream(1)));
            bench.submit(1, step(1, vec![matching.open(1)], &[1]));
            assert_eq!(bench.run(), 0);
        },
    );
    let (mut bench, waits) = (bench, Duration::from_secs(60));
    bench.state.aside.set_grace(waits);
    until_it_has_work(&mut bench);
    assert_eq!(bench.run(), 1);
    let started = Instant::now();
    while_busy(&matching.grammars, || {
        bench.submit(1, step(2, vec![matching.open(2)], &[2]));
        assert_eq!(bench.run(), 0);
    });
    assert!(started.elapsed() < waits);
    // Once a step had its masks at once, a batch waits again.
    until_it_has_work(&mut bench);
    assert_eq!(bench.run(), 1);
    while_busy(&matching.grammars, || ());
    bench.submit(1, step(3, vec![], &[2]));
    assert_eq!(bench.run(), 1);
    let busy = hold_up(&matching.grammars);
    bench.submit(1, step(4, vec![matching.open(3)], &[3]));
    let frees = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        drop(busy);
    });
    assert_eq!(bench.run(), 1);
    frees.join().unwrap();
}

#[test]
fn steps_of_a_stream_that_is_gone_are_dropped() {
    for closes in [true, false] {
        let (mut bench, _matching) = while_masks_lack(
            |_| (),
            |bench, matching| {
                let one = bench.stream(1);
                bench.submit(1, step(1, vec![matching.open(1)], &[1]));
                assert_eq!(bench.run(), 0);
                drop(one);
                if closes {
                    bench.state.apply(Command::Close { stream: 1 });
                    assert_eq!(bench.admission.open_sequences(), 0);
                    assert!(bench.state.aside.is_empty());
                }
            },
        );
        if !closes {
            until_it_has_work(&mut bench);
        }
        assert_eq!(bench.run(), 0);
        assert!(!bench.state.has_work() && bench.state.aside.is_empty());
    }
}

#[test]
fn a_batch_takes_back_what_it_has_room_for() {
    let replies = std::cell::RefCell::new(vec![]);
    let (mut bench, _matching) = while_masks_lack(
        |limits| limits.max_rows_per_step = 3,
        |bench, matching| {
            for stream in 1..=3 {
                replies.borrow_mut().push(bench.stream(stream));
                bench.submit(stream, step(stream, vec![matching.open(1), matching.open(2)], &[1, 2]));
                let mut batch = bench.state.gather(bench.now);
                assert_eq!(batch.rows(), 2);
                bench.state.fill_masks(&mut batch);
                assert_eq!((batch.rows(), batch.steps.len()), (0, 0));
            }
        },
    );
    let started = Instant::now();
    while !(1..=3).all(|stream| bench.state.aside.is_ready(stream)) {
        assert!(started.elapsed().as_secs() < 60, "the masks never came");
        bench.state.has_work();
    }
    for _ in 0..3 {
        assert_eq!(bench.run(), 1);
    }
    assert!(!bench.state.has_work());
    assert!(replies.take().iter_mut().all(|replies| ids(replies).len() == 1));
}

/// A stream of its own with a sequence that drafts what its grammar forces, and whose masks are there.
fn drafting(bench: &mut Bench, matching: &Matching) -> mpsc::Receiver<StepReply> {
    let mut replies = bench.stream(1);
    bench.submit(1, step(1, vec![matching.open_drafting(1)], &[1]));
    bench.state.aside.set_grace(Duration::from_secs(60));
    assert_eq!((bench.run(), ids(&mut replies)), (1, vec![1]));
    bench.state.aside.set_grace(Duration::ZERO);
    replies
}

#[test]
fn replies_whose_drafts_take_long_hold_up_no_other_stream() {
    let (mut bench, matching) = while_masks_lack(|_| (), |_, _| ());
    let (mut one, mut two) = (drafting(&mut bench, &matching), bench.stream(2));
    // The threads are busy only once they have done what they were given before.
    let mut found = while_busy(&matching.grammars, || {
        let started = Instant::now();
        bench.submit(1, step(2, vec![], &[1]));
        bench.submit(2, step(3, opens(&[1]), &[1]));
        assert_eq!((bench.run(), ids(&mut two)), (2, vec![3]));
        bench.submit(1, step(4, opens(&[2]), &[2]));
        bench.submit(2, step(5, vec![], &[1]));
        bench.run();
        assert_eq!(ids(&mut two), [5]);
        // Its time may be over already, on a busy machine. Its stream goes on then.
        let found = ids(&mut one);
        assert!(found.is_empty() || started.elapsed().as_millis() >= 50, "its drafts cannot be there");
        found
    });
    found.extend(in_order(&mut bench, &mut one, 2 - found.len()));
    assert_eq!(found, [2, 4]);
}

/// Replies of a stream, once so many are there.
fn in_order(bench: &mut Bench, replies: &mut mpsc::Receiver<StepReply>, count: usize) -> Vec<u64> {
    let mut found = ids(replies);
    while found.len() < count {
        until_it_has_work(bench);
        bench.run();
        found.extend(ids(replies));
    }
    assert!(!bench.state.has_work() && bench.state.aside.is_empty());
    found
}

/// A step waits for masks, and the one before it for its drafts.
#[test]
fn replies_go_out_in_order_whatever_they_wait_for() {
    for masks_are_first in [true, false] {
        let (mut bench, matching) = while_masks_lack(|_| (), |_, _| ());
        let mut one = drafting(&mut bench, &matching);
        let held = while_busy(&matching.grammars, || {
            bench.submit(1, step(2, vec![], &[1]));
            bench.submit(1, step(3, vec![matching.open(2)], &[2]));
            bench.submit(1, step(4, opens(&[3]), &[3]));
            let mut batch = bench.state.gather(bench.now);
            bench.state.fill_masks(&mut batch);
            assert_eq!(batch.steps.len(), 1);
            let held = masks_are_first.then(|| hold_up(&matching.grammars));
            bench.state.run(&mut batch, &mut CpuBackend::new(1));
            bench.state.commit(batch, bench.now);
            bench.submit(1, step(5, vec![], &[3]));
            held
        });
        assert_eq!(in_order(&mut bench, &mut one, 4), [2, 3, 4, 5]);
        drop(held);
    }
}

/// A step that the same batch could not take, because it closes a sequence of it.
#[test]
fn what_is_behind_a_reply_that_was_set_aside_waits_as_well() {
    let (mut bench, matching) = while_masks_lack(|_| (), |_, _| ());
    let mut one = drafting(&mut bench, &matching);
    while_busy(&matching.grammars, || {
        bench.submit(1, step(2, vec![], &[1]));
        bench.submit(1, Step { close: vec![1], ..step(3, opens(&[3]), &[3]) });
        bench.run();
        bench.run();
    });
    assert_eq!(in_order(&mut bench, &mut one, 2), [2, 3]);
}

#[test]
fn replies_of_a_stream_that_is_gone_are_dropped() {
    let (mut bench, matching) = while_masks_lack(|_| (), |_, _| ());
    let mut one = drafting(&mut bench, &matching);
    while_busy(&matching.grammars, || {
        bench.submit(1, step(2, vec![], &[1]));
        assert_eq!(bench.run(), 1);
        bench.state.apply(Command::Close { stream: 1 });
        assert!(bench.state.aside.is_empty());
    });
    assert!(ids(&mut one).len() <= 1, "it was told, or is gone");
    assert_eq!((bench.admission.open_sequences(), bench.state.has_work()), (0, false));
}

/// A thread that brings a small step leaves it to the engine's to take back what was set aside.
#[test]
fn what_was_set_aside_is_left_to_the_engines_thread() {
    let running = std::cell::RefCell::new(None);
    let (_bench, _matching) = while_masks_lack(
        |_| (),
        |bench, matching| {
            let (replies, asking) = (bench.stream(1), step(1, vec![matching.open(1)], &[1]));
            let permits = bench.permits(&asking, false).expect("room");
            let queued = Box::new(Queued { step: asking, permits, weight: RUN_HERE_BYTES + 1 });
            let state = std::mem::replace(&mut bench.state, State::new(Arc::default(), Metrics::noop()));
            let (sender, inbox) = thread_channel::channel();
            let (backend, metrics, heartbeat) = (Box::new(CpuBackend::new(1)), Metrics::noop(), Heartbeat::new());
            let mut core = Core { state, inbox, backend, metrics, heartbeat };
            sender.send(Command::Step { stream: 1, queued }).expect("it is there");
            assert_eq!(core.turn(usize::MAX), TurnEnd::GrammarsWork);
            assert_eq!(core.heartbeat.busy_for(), None, "it is not stuck");
            running.replace(Some((core, sender, replies)));
        },
    );
    let (mut core, _sender, mut replies) = running.take().expect("it was left here");
    let started = Instant::now();
    while !core.state.has_work() {
        assert!(started.elapsed().as_secs() < 60, "the masks never came");
        std::thread::yield_now();
    }
    assert_eq!((core.turn(RUN_HERE_BYTES), ids(&mut replies)), (TurnEnd::StepsWait, vec![]));
    assert_eq!((core.turn(usize::MAX), ids(&mut replies)), (TurnEnd::Idle, vec![1]));
}

/// The whole engine, with its thread.
#[test]
fn the_engine_answers_others_meanwhile_and_is_woken_by_the_last_of_the_work() {
    let matching = Matching::new();
    drop(matching.open(0));
    let backend = Box::new(CpuBackend::new(1));
    let (handle, _thread) = Engine::start(backend, Arc::new(Limits::default()), Metrics::noop());
    let stream = || {
        let permit = Arc::new(handle.admit_stream().expect("room"));
        handle.open_stream(permit, Metrics::noop().model("test"), 4).expect("a stream")
    };
    let (mut slow, mut other) = (stream(), stream());
    let (started, heartbeat) = (Instant::now(), handle.heartbeat());
    let held = while_busy(&matching.grammars, || {
        submit(&slow, step(1, vec![], &[1]), vec![matching.open_drafting(1)]).expect("room");
        submit(&slow, step(2, vec![], &[1]), vec![]).expect("room");
        for id in 1..4 {
            let open = if id == 1 { opens(&[1]) } else { vec![] };
            submit(&other, step(id, vec![], &[1]), open).expect("room");
            assert_eq!(other.replies.blocking_recv().expect("a reply").id, id);
        }
        let told = slow.replies.try_recv();
        assert!(told.is_err() || started.elapsed().as_secs() >= 2, "its masks cannot be there");
        while heartbeat.busy_for().is_some() {
            std::thread::yield_now();
        }
        hold_up(&matching.grammars)
    });
    // By now it has woken for the masks, as a rule, and waits for the drafts.
    std::thread::sleep(Duration::from_millis(200));
    drop(held);
    for id in 1..=2 {
        assert_eq!(slow.replies.blocking_recv().expect("a reply").id, id);
    }
    assert!(started.elapsed() < LOOK / 2, "nobody woke the engine");
}
