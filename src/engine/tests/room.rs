//! What takes room, and until when.

use super::*;

#[test]
fn room_is_taken_and_given_back() {
    let mut bench = Bench::new(|limits| {
        (limits.max_queued_steps, limits.max_bytes_in_flight, limits.max_rows_per_step) = (2, 5 * 64, 1);
    });
    let refused = |bench: &Bench, step: Step| bench.admission.step(&step).err().map(|refusal| refusal.reason().name());
    assert_eq!(refused(&bench, step(1, vec![], &[1; 6])), Some("BYTES_IN_FLIGHT"));
    let shared = Step { logits: block(1), message_bytes: 64, ..step(1, vec![], &[1; 17]) };
    assert_eq!(refused(&bench, shared), Some("ROWS_IN_FLIGHT"));
    let mut replies = bench.stream(1);
    bench.submit(1, step(1, opens(&[1]), &[1]));
    bench.submit(1, step(2, opens(&[2]), &[2]));
    assert_eq!(refused(&bench, step(3, vec![], &[3])), Some("QUEUE_FULL"));
    bench.run();
    bench.run();
    assert_eq!(ids(&mut replies), [1, 2]);
    assert_eq!(refused(&bench, step(3, vec![], &[3; 5])), None);
}

#[test]
fn replies_that_nobody_reads_are_counted() {
    let mut bench = Bench::new(|limits| limits.max_bytes_in_flight = 4096);
    let used = |bench: &Bench| bench.admission.bytes_in_flight();
    let mut replies = bench.stream(1);
    let logprobs = LogprobsParams { top_n: VOCAB, mode: LogprobsMode::Raw, token_ids: Vec::new() };
    let asks = charged(sequence(|params| params.logprobs = Some(logprobs)));
    bench.submit(1, step(1, vec![Open { sequence_id: 1, sequence: asks }], &[1]));
    bench.run();
    let each = used(&bench);
    assert!(each > 8 * VOCAB as usize, "{each} bytes do not even hold the logprobs");
    let mut unread = 1;
    while bench.admission.step(&step(2, vec![], &[1])).is_ok() {
        bench.submit(1, step(unread + 1, vec![], &[1]));
        bench.run();
        unread += 1;
        assert_eq!(used(&bench), each * unread as usize);
    }
    assert!(unread > 2, "the limit is reached by replies, not by the first of them");
    while let Ok(reply) = replies.try_recv() {
        drop(reply);
    }
    assert_eq!(used(&bench), 0);
}

#[test]
fn steps_that_are_held_back_take_no_place_in_the_queue() {
    let bench = Bench::new(|limits| limits.max_queued_steps = 2);
    let one = || step(1, vec![], &[1]);
    let mut held = [0; 2].map(|_| bench.admission.held_step(&one()).expect("room"));
    assert!(bench.admission.held_step(&one()).is_err(), "they are bounded too");
    let others = [0; 2].map(|_| bench.admission.step(&one()).expect("the queue is empty"));
    // What was let in is queued, and then nothing else is until there is room.
    held.iter_mut().for_each(|permits| bench.admission.release(permits));
    assert!(bench.admission.held_step(&one()).is_ok());
    drop(others);
    assert!(bench.admission.step(&one()).is_err());
    drop(held);
    assert!(bench.admission.step(&one()).is_ok());
}
