//! How much room steps take that wait for masks, and who goes on meanwhile.

use super::aside::{until_it_has_work, while_masks_lack};
use super::*;
use crate::grammar::while_busy;

const ALL: usize = 1 << 20;
/// A sixteenth.
const EACH: usize = ALL / 16;

fn sixteen(limits: &mut Limits) {
    (limits.max_bytes_in_flight, limits.max_message_bytes, limits.max_rows_per_step) = (ALL, EACH, 4);
}

/// A step with a message of a sixteenth of all bytes, or nearly so.
fn large(id: u64, open: Vec<Open>, sample_ids: &[u64]) -> Step {
    Step { message_bytes: EACH - 4096, ..step(id, open, sample_ids) }
}

/// How many steps of such messages more are let in on each of these streams, and by whom they are refused.
fn let_in(bench: &Bench, room: Option<&AsideRoom>) -> (usize, Refusal) {
    let place = || match room {
        Some(room) => Admission::place_aside(room, EACH - 4096),
        None => bench.admission.place(EACH - 4096),
    };
    let (mut places, mut refused) = (vec![], None);
    while refused.is_none() {
        match place() {
            Ok(place) => places.push(place),
            Err(refusal) => refused = Some(refusal),
        }
    }
    (places.len(), refused.expect("it ended so"))
}

#[test]
fn what_is_set_aside_leaves_room_for_others() {
    let (mut bench, _matching) = while_masks_lack(sixteen, |bench, matching| {
        let streams = [1, 2].map(|stream| bench.stream(stream));
        bench.submit(1, large(1, vec![matching.open(1)], &[1]));
        bench.submit(1, large(2, vec![], &[1]));
        bench.submit(1, large(3, vec![], &[1]));
        assert_eq!((bench.run(), bench.state.is_aside(1)), (0, true));
        let [one, two] = [1, 2].map(|stream| bench.state.aside_room(stream));
        assert_eq!(let_in(bench, Some(&one)), (1, Refusal::BytesInFlight), "a stream has two eighths");
        assert_eq!(let_in(bench, Some(&two)), (3, Refusal::BytesInFlight), "and all of them three");
        assert_eq!(let_in(bench, None), (14, Refusal::BytesInFlight), "others have the rest");
        // What comes on the stream, after all, is counted with the rest of it.
        bench.submit(1, large(4, vec![], &[1]));
        assert_eq!((let_in(bench, Some(&one)).0, let_in(bench, Some(&two)).0), (0, 2));
        drop(streams);
        bench.state.apply(Command::Close { stream: 1 });
        assert_eq!(bench.admission.bytes_in_flight().used(), 0);
        assert_eq!(let_in(bench, Some(&two)).0, 4);
    });
    assert!(!bench.state.has_work());
}

#[test]
fn steps_keep_their_places_in_the_queue() {
    let replies = std::cell::RefCell::new(None);
    let (mut bench, _matching) = while_masks_lack(
        |limits| limits.max_queued_steps = 1,
        |bench, matching| {
            replies.replace(Some(bench.stream(1)));
            bench.submit(1, step(1, vec![matching.open(1)], &[1]));
            assert_eq!(bench.run(), 0);
            assert_eq!(bench.permits(&step(2, vec![], &[]), false).err(), Some(Refusal::QueueFull));
        },
    );
    until_it_has_work(&mut bench);
    let mut batch = bench.state.gather(bench.now);
    bench.state.fill_masks(&mut batch);
    assert!(batch.steps.len() == 1 && bench.permits(&step(2, vec![], &[]), false).is_ok(), "its batch begins");
}

#[test]
fn what_goes_on_takes_its_room_among_all_steps_again() {
    let replies = std::cell::RefCell::new(None);
    let (mut bench, matching) = while_masks_lack(sixteen, |bench, matching| {
        replies.replace(Some(bench.stream(1)));
        bench.submit(1, large(1, vec![matching.open(1)], &[1]));
        (2..5).for_each(|id| bench.submit(1, large(id, vec![], &[1])));
        assert_eq!(bench.run(), 0);
        assert_eq!(let_in(bench, Some(&bench.state.aside_room(1))).0, 0);
    });
    bench.state.aside.set_grace(Duration::from_secs(60));
    until_it_has_work(&mut bench);
    let batch = bench.state.gather(bench.now);
    assert_eq!((batch.steps.len(), let_in(&bench, Some(&bench.state.aside_room(1))).0), (1, 4));
    drop((batch, matching));
}

/// Otherwise one stream could have all the room there is, and for seconds.
#[test]
fn a_step_does_not_wait_for_masks_if_its_stream_has_too_much_in_flight() {
    for behind in [4, 5] {
        let replies = std::cell::RefCell::new(None);
        let (mut bench, _matching) = while_masks_lack(sixteen, |bench, matching| {
            let mut one = bench.stream(1);
            bench.submit(1, large(1, vec![matching.open(1)], &[1]));
            (2..2 + behind).for_each(|id| bench.submit(1, large(id, vec![], &[1])));
            assert_eq!((bench.run(), bench.state.has_work()), (0, behind == 5));
            if behind == 5 {
                assert_eq!(bench.run(), 1);
                let reply = one.try_recv().expect("it is answered at once");
                let Err(failure) = &reply.work[0] else { panic!("there are no masks: {:?}", reply.work) };
                assert_eq!(failure.status, RowStatus::DeadlineExceeded);
                assert!(failure.message.contains("too many steps wait for masks already"), "{}", failure.message);
                // Now the rest has room.
                assert_eq!((bench.run(), bench.state.has_work()), (0, false));
            }
            replies.replace(Some(one));
        });
        let mut one = replies.take().expect("it was left here");
        let mut found = vec![];
        while found.len() < behind as usize {
            until_it_has_work(&mut bench);
            bench.run();
            found.extend(std::iter::from_fn(|| one.try_recv().ok()).flat_map(|reply| statuses(&reply)));
        }
        assert!(found.iter().all(Option::is_none), "the text goes on: {found:?}");
    }
}

/// Otherwise two streams could keep all others from waiting.
#[test]
fn one_step_of_each_stream_has_room_that_others_cannot_take() {
    let (bench, _matching) = while_masks_lack(sixteen, |bench, matching| {
        let streams = [1, 2, 3, 4, 5].map(|stream| bench.stream(stream));
        for (stream, behind) in [(1, 3), (2, 1), (3, 0), (4, 0), (5, 0)] {
            bench.submit(stream, large(1, vec![matching.open(1)], &[1]));
            (2..2 + behind).for_each(|id| bench.submit(stream, large(id, vec![], &[1])));
            assert_eq!(bench.run(), 0);
            // Half of all bytes are taken by then.
            assert_eq!((bench.state.is_aside(stream), bench.state.has_work()), (true, stream == 5));
        }
        drop(streams);
        (1..=5).for_each(|stream| bench.state.apply(Command::Close { stream }));
    });
    assert_eq!(bench.admission.bytes_in_flight().used(), 0);
}

/// Where a message may be as large as all that is left for what waits, a step that is alone waits all the same.
#[test]
fn the_only_step_that_waits_has_room() {
    let (mut bench, _matching) = while_masks_lack(
        |limits| (limits.max_bytes_in_flight, limits.max_message_bytes) = (1 << 14, 1 << 10),
        |bench, matching| {
            let _one = bench.stream(1);
            let open = (0..50).map(|id| matching.open(id)).collect();
            let step = Step { message_bytes: 1 << 10, ..step(1, open, &[1]) };
            assert!(memory::of_step(&step, 50) > 1 << 13, "it is more than half");
            bench.submit(1, step);
            assert_eq!((bench.run(), bench.state.has_work()), (0, false));
            bench.state.apply(Command::Close { stream: 1 });
        },
    );
    assert_eq!((bench.admission.bytes_in_flight().used(), bench.state.has_work()), (0, false));
}

#[test]
fn a_step_waits_for_its_masks_no_longer_than_its_deadline() {
    let (mut bench, _matching) = while_masks_lack(
        |_| (),
        |bench, matching| {
            let mut one = bench.stream(1);
            let deadline = Some(Instant::now() + Duration::from_millis(300));
            bench.submit(1, Step { deadline, ..step(1, vec![matching.open(1)], &[1]) });
            bench.submit(1, step(2, vec![], &[]));
            assert_eq!((bench.run(), ids(&mut one)), (0, vec![]));
            until_it_has_work(bench);
            assert!(deadline < Some(Instant::now()));
            // The clock of the batch stands still, and the step ends all the same.
            bench.run();
            let reply = one.try_recv().expect("it is answered, and its masks are still not there");
            let Err(failure) = &reply.work[0] else { panic!("its deadline has passed: {:?}", reply.work) };
            assert_eq!(failure.status, RowStatus::DeadlineExceeded);
            assert!(failure.message.contains("the step's deadline"), "{}", failure.message);
            assert_eq!(ids(&mut one), [2]);
        },
    );
    assert!(!bench.state.has_work() && bench.state.aside.is_empty());
}

#[test]
fn what_was_set_aside_passes_over_a_waiting_step_only_once() {
    let replies = std::cell::RefCell::new(vec![]);
    let (mut bench, _matching) = while_masks_lack(
        |limits| limits.max_rows_per_step = 3,
        |bench, matching| {
            for stream in 1..=3 {
                replies.borrow_mut().push(bench.stream(stream));
                bench.submit(stream, step(stream, vec![matching.open(1), matching.open(2)], &[1, 2]));
                assert_eq!(bench.run(), 0);
            }
        },
    );
    let started = Instant::now();
    while !(1..=3).all(|stream| bench.state.aside.is_ready(stream)) {
        assert!(started.elapsed().as_secs() < 60, "the masks never came");
        bench.state.has_work();
    }
    let mut other = bench.stream(4);
    bench.submit(4, step(4, opens(&[1, 2]), &[1, 2]));
    let order: Vec<usize> = (0..4)
        .map(|_| {
            assert_eq!(bench.run(), 1);
            ids(&mut other).len()
        })
        .collect();
    assert_eq!(order, [0, 1, 0, 0]);
    assert!(!bench.state.has_work());
}

/// It decides which thread runs small steps, so it has to be right again afterwards, however what was set aside ended.
#[test]
fn what_is_set_aside_does_not_weigh() {
    for ends in ["closed", "gone", "done"] {
        let replies = std::cell::RefCell::new(None);
        let heavy = |bench: &mut Bench, stream, step: Step| {
            let permits = bench.permits(&step, false).expect("room");
            bench.state.apply(Command::Step { stream, queued: Box::new(Queued { step, permits, weight: 100 }) });
        };
        let (mut bench, _matching) = while_masks_lack(
            |_| (),
            |bench, matching| {
                let mut streams = [1, 2].map(|stream| bench.stream(stream));
                heavy(bench, 1, step(1, vec![matching.open(1)], &[1]));
                heavy(bench, 1, step(2, vec![], &[1]));
                assert_eq!(bench.state.weight(), 200);
                assert_eq!((bench.run(), bench.state.has_work(), bench.state.weight()), (0, false, 0));
                heavy(bench, 1, step(3, vec![], &[1]));
                heavy(bench, 2, step(1, opens(&[1]), &[1]));
                assert_eq!(bench.state.weight(), 100);
                assert_eq!((bench.run(), ids(&mut streams[1])), (1, vec![1]));
                let [one, two] = streams;
                match ends {
                    "closed" => {
                        heavy(bench, 2, step(2, vec![], &[1]));
                        bench.state.apply(Command::Close { stream: 1 });
                        assert_eq!(bench.state.weight(), 100);
                        assert_eq!(bench.run(), 1);
                        drop((one, two));
                    }
                    "gone" => drop(one),
                    _ => _ = replies.replace(Some((one, two))),
                }
            },
        );
        if ends != "closed" {
            until_it_has_work(&mut bench);
            assert_eq!(bench.state.weight(), usize::MAX, "it is left to the engine's thread");
            bench.run();
            assert_eq!(
                (bench.state.has_work(), bench.state.weight()),
                (ends == "done", if ends == "done" { 200 } else { 0 })
            );
            heavy(&mut bench, 1, step(4, vec![], &[]));
            bench.state.aside.set_grace(Duration::from_secs(60));
            while bench.state.has_work() {
                bench.run();
            }
            bench.state.apply(Command::Close { stream: 1 });
        }
        assert_eq!((bench.state.has_work(), bench.state.weight()), (false, 0), "{ends}");
        drop(replies);
        assert_eq!(bench.admission.bytes_in_flight().used(), 0, "{ends}");
    }
}

/// The whole engine: what streams send behind steps that wait has places of its own.
#[test]
fn streams_behind_slow_texts_do_not_fill_the_queue() {
    let matching = Matching::new();
    drop(matching.open(0));
    let limits = Limits { max_queued_steps: 16, ..Limits::default() };
    let (handle, _thread) = Engine::start(Box::new(CpuBackend::new(1)), Arc::new(limits), Metrics::noop());
    let stream = || {
        let permit = Arc::new(handle.admit_stream().expect("room"));
        handle.open_stream(permit, Metrics::noop().model("test"), 64).expect("a stream")
    };
    let (slow, mut other) = ([stream(), stream()], stream());
    let in_flight = while_busy(&matching.grammars, || {
        let counts = [0, 1].map(|at| {
            submit(&slow[at], step(1, vec![], &[1]), vec![matching.open(1)]).expect("room");
            while !slow[at].aside.is_in_use() {
                std::thread::yield_now();
            }
            let sent = (2..).take_while(|&id| submit(&slow[at], step(id, vec![], &[1]), vec![]).is_ok());
            1 + sent.count()
        });
        for id in 1..=100 {
            let open = if id == 1 { opens(&[1]) } else { vec![] };
            submit(&other, step(id, vec![], &[1]), open).expect("room");
            assert_eq!(other.replies.blocking_recv().expect("a reply").id, id);
        }
        counts
    });
    assert_eq!(in_flight, [4, 2], "a quarter of the queue, and three eighths");
    for (mut stream, count) in slow.into_iter().zip(in_flight) {
        assert!((1..=count as u64).all(|id| stream.replies.blocking_recv().is_some_and(|reply| reply.id == id)));
    }
}
