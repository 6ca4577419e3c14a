//! Steps that form one batch, and steps that wait for the next.

use super::*;

#[test]
fn waiting_steps_of_all_streams_make_one_batch() {
    let mut bench = Bench::new(|_| ());
    let (mut one, mut two) = (bench.stream(1), bench.stream(2));
    bench.submit(1, step(1, opens(&[1, 2]), &[1]));
    bench.submit(1, step(2, vec![], &[2]));
    bench.submit(2, step(3, opens(&[1]), &[1]));
    assert_eq!(bench.run(), 3);
    assert_eq!((ids(&mut one), ids(&mut two)), (vec![1, 2], vec![3]));
    assert!(!bench.state.has_work());
}

#[test]
fn a_step_on_a_busy_sequence_waits_and_so_does_all_behind_it() {
    let mut bench = Bench::new(|_| ());
    let (mut one, mut two) = (bench.stream(1), bench.stream(2));
    bench.submit(1, step(1, opens(&[1, 2]), &[1]));
    bench.submit(1, step(2, vec![], &[1]));
    bench.submit(1, step(3, vec![], &[2]));
    bench.submit(2, step(4, opens(&[1]), &[1]));
    assert_eq!(bench.run(), 2);
    assert_eq!((ids(&mut one), ids(&mut two)), (vec![1], vec![4]));
    assert_eq!(bench.run(), 2);
    assert_eq!(ids(&mut one), [2, 3]);
    // Closing touches a sequence as much as sampling does.
    bench.submit(1, step(5, vec![], &[1]));
    bench.submit(1, Step { close: vec![1], ..step(6, vec![], &[]) });
    assert_eq!((bench.run(), ids(&mut one)), (1, vec![5]));
    assert_eq!((bench.run(), ids(&mut one)), (1, vec![6]));
    assert_eq!(bench.admission.open_sequences(), 2);
}

#[test]
fn a_batch_is_bounded_by_rows_and_streams_take_turns() {
    let mut bench = Bench::new(|limits| limits.max_rows_per_step = 2);
    let (mut one, mut two) = (bench.stream(1), bench.stream(2));
    for id in 1..=2 {
        bench.submit(1, step(id, opens(&[id]), &[id]));
        bench.submit(2, step(id, opens(&[id]), &[id]));
    }
    assert_eq!((bench.run(), ids(&mut one), ids(&mut two)), (2, vec![1], vec![1]));
    assert_eq!((bench.run(), ids(&mut one), ids(&mut two)), (2, vec![2], vec![2]));
}

#[test]
fn a_batch_is_bounded_by_the_bytes_of_its_rows() {
    let row = VOCAB as usize * size_of::<f32>();
    let mut bench = Bench::new(|limits| limits.max_row_bytes_per_step = 3 * row);
    let (mut one, mut two) = (bench.stream(1), bench.stream(2));
    // The works of this step share one row, which counts for each of them.
    let first_row = |work| Work { first_row: 0, ..work };
    let shared = step(1, opens(&[1, 2]), &[1, 2]);
    bench.submit(1, Step { work: shared.work.into_iter().map(first_row).collect(), logits: block(1), ..shared });
    bench.submit(2, step(2, opens(&[1, 2]), &[1, 2]));
    bench.submit(1, step(3, opens(&[3]), &[3]));
    assert_eq!((bench.run(), ids(&mut one), ids(&mut two)), (2, vec![1, 3], vec![]));
    assert_eq!((bench.run(), ids(&mut one), ids(&mut two)), (1, vec![], vec![2]));
}

/// What a draft's tokens were drawn from may be all of a message, where rows are lists of a few tokens.
#[test]
fn a_batch_is_bounded_by_the_draft_distributions_that_it_reads() {
    let row = VOCAB as usize * size_of::<f32>();
    let sparse = MAX_LISTED_ENTRIES.div_ceil(ENTRIES_A_SPARSE);
    let listed =
        || DraftsFrom::Sparse { counts: vec![sparse as u32], tokens: vec![0; sparse], probs: vec![1.0; sparse] };
    let all = || DraftsFrom::Dense(block(1));
    // The second kind has two rows and a distribution, of five rows that fit.
    for (from, most) in [(&listed as &dyn Fn() -> DraftsFrom, usize::MAX), (&all, 5 * row)] {
        let mut bench = Bench::new(|limits| limits.max_row_bytes_per_step = most);
        let (mut one, mut two) = (bench.stream(1), bench.stream(2));
        let verifying = |id| {
            let verify = VerifyWork { tokens: vec![3], parents: None, from: from(), measure: false };
            let work = Work {
                sequence_id: Some(1),
                first_row: 0,
                kind: Ok(WorkKind::Verify(verify)),
                masks: Masks::default(),
            };
            Step { work: vec![work], logits: block(2), ..step(id, opens(&[1]), &[]) }
        };
        bench.submit(1, verifying(1));
        bench.submit(2, verifying(2));
        assert_eq!((bench.run(), ids(&mut one), ids(&mut two)), (1, vec![1], vec![]));
        assert_eq!((bench.run(), ids(&mut one), ids(&mut two)), (1, vec![], vec![2]));
    }
}

/// A grammar's mask has a bit for each token of its row, in words of 32.
#[test]
fn a_batch_is_bounded_by_the_masks_of_its_rows() {
    let grammars = Matching::new();
    let matching = || vec![grammars.open(1)];
    let (row, mask) = (VOCAB as usize * size_of::<f32>(), size_of::<u32>());
    for (most, together) in [(2 * row + mask, 2), (2 * row + mask - 1, 1)] {
        let mut bench = Bench::new(|limits| limits.max_row_bytes_per_step = most);
        let (mut one, mut two) = (bench.stream(1), bench.stream(2));
        bench.submit(1, step(1, matching(), &[1]));
        bench.submit(2, step(2, matching(), &[1]));
        assert_eq!(bench.run(), together);
        assert_eq!((ids(&mut one), ids(&mut two).len()), (vec![1], together - 1));
    }
}

#[test]
fn a_batch_is_bounded_by_the_logits_that_it_explains() {
    let mut bench = Bench::new(|_| ());
    let (mut one, mut two) = (bench.stream(1), bench.stream(2));
    // One row that is as long as a step may explain.
    let row = || {
        let bytes = vec![0; MAX_EXPLAINED_LOGITS * size_of::<f32>()];
        LogitsBlock::new(bytes.into(), Dtype::F32, MAX_EXPLAINED_LOGITS as u32, 0).expect("one row")
    };
    let asking = |id| Step {
        logits: row(),
        ..step(id, vec![Open { sequence_id: 1, sequence: charged(sequence(explained)) }], &[1])
    };
    bench.submit(1, asking(1));
    bench.submit(2, asking(2));
    assert_eq!((bench.run(), ids(&mut one), ids(&mut two)), (1, vec![1], vec![]));
    assert_eq!((bench.run(), ids(&mut one), ids(&mut two)), (1, vec![], vec![2]));
}

#[test]
fn a_work_that_is_not_done_costs_its_step_nothing() {
    let mut bench = Bench::new(|limits| limits.max_bytes_in_flight = 1 << 20);
    let mut replies = bench.stream(1);
    let asking = |sequence_id, top_n| {
        let asks = sequence(|params| {
            explained(params);
            params.logprobs = Some(LogprobsParams { top_n, mode: LogprobsMode::Raw, token_ids: Vec::new() });
        });
        Open { sequence_id, sequence: charged(asks) }
    };
    // Each row is as long as a step may explain. There is no room for what the first one may report.
    let bytes = vec![0; 2 * MAX_EXPLAINED_LOGITS * size_of::<f32>()];
    let logits = LogitsBlock::new(bytes.into(), Dtype::F32, MAX_EXPLAINED_LOGITS as u32, 0).expect("two rows");
    bench.submit(1, Step { logits, ..step(1, vec![asking(1, 1 << 20), asking(2, 1)], &[1, 2]) });
    bench.run();
    let work = replies.try_recv().expect("a reply").work;
    assert!(matches!(&work[0], Err(failure) if failure.status == RowStatus::ReplyBytes), "{:?}", work[0]);
    assert!(matches!(&work[1], Ok(Done::Sampled { .. })), "{:?}", work[1]);
}

/// Draft work reports nothing.
#[test]
fn draft_work_explains_nothing_and_takes_no_share_of_what_may_be_explained() {
    let mut bench = Bench::new(|_| ());
    let mut replies = bench.stream(1);
    // Each draft token keeps its row.
    let state = Counter::new(1 << 30, Gauge::noop());
    let asking = |sequence_id| Open { sequence_id, sequence: ChargedSequence::new(sequence(explained), &state) };
    let bytes = vec![0; 2 * MAX_EXPLAINED_LOGITS * size_of::<f32>()];
    let logits = LogitsBlock::new(bytes.into(), Dtype::F32, MAX_EXPLAINED_LOGITS as u32, 0).expect("two rows");
    let mut both = Step { logits, ..step(1, vec![asking(1), asking(2)], &[1, 2]) };
    both.work[0].kind = Ok(WorkKind::Draft(DraftWork { restart: false, parent: None }));
    bench.submit(1, both);
    bench.run();
    assert_eq!(statuses(&replies.try_recv().expect("a reply")), [None, None]);
}
