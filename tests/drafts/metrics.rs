//! Every counter after a scripted run, with its exact value, and the tests in the worker's results.

use crate::support::*;
use crate::work::*;
use croupier::proto::*;

/// A row that gives these tokens equal probabilities, and the others none.
fn among(tokens: &[u32]) -> Vec<f32> {
    (0..VOCAB).map(|t| if tokens.contains(&t) { 1.0 } else { f32::NEG_INFINITY }).collect()
}

fn measured(verify: VerifyWork) -> VerifyWork {
    VerifyWork { measure: true, ..verify }
}

fn tests(work: &WorkResult) -> Vec<(u32, bool, f32, f32, u32)> {
    let tests = &work.verify.as_ref().unwrap().tests;
    tests.iter().map(|t| (t.index, t.accepted, t.expected_acceptance, t.total_variation, t.rejected_rank)).collect()
}

/// Does the scripted verifications, and compares their tests with values computed by hand.
async fn run(worker: &mut Worker) {
    worker.step(open_step(vec![open(1, seeded(1)), open(2, seeded(2))])).await;
    let half = among(&[0, 1]);
    // Twice as likely in the target as in the draft: accepted whatever the random number. Expected is min(0.5, 0.25) + min(0.5, 0.75) =
    // 0.75; the total variation is |0.5 - 0.25|.
    let uneven: &[(u32, f32)] = &[(0, 0.25), (1, 0.75)];
    let work = worker
        .verify(1, measured(chain(&[0, 0], sparse(&[uneven, uneven]))), &[half.clone(), half.clone(), half.clone()])
        .await;
    assert_eq!(tests(&work), [(0, true, 0.75, 0.25, 0), (1, true, 0.75, 0.25, 0)]);
    // Impossible in the target, so rejected. In the target's order, two possible tokens come first, then impossible ones by their ids, so
    // token 5 is the sixth. Token 0 is as likely as in the draft, so only token 1 is left.
    let half_lost: &[(u32, f32)] = &[(0, 0.5), (5, 0.5)];
    let work = worker.verify(1, measured(chain(&[5], sparse(&[half_lost]))), &[half.clone(), half.clone()]).await;
    assert_eq!((tests(&work), ids(&work)), (vec![(0, false, 0.5, 0.5, 6)], vec![1]));
    let test = &work.verify.as_ref().unwrap().tests[0];
    assert_eq!((test.target_probability, test.draft_probability), (0.0, 0.5));
    // No draft token: in effect a plain row.
    worker.verify(1, measured(chain(&[], deterministic())), &[half]).await;
    // The text ends with its first draft token.
    let (end, never) = (among(&[3]), among(&[4]));
    let work = worker.verify(2, measured(chain(&[3, 1], deterministic())), &[end, never.clone(), never]).await;
    assert_eq!((tests(&work), work.finish_reason()), (vec![(0, true, 1.0, 0.0, 0)], FinishReason::Eos));
}

#[tokio::test]
async fn a_scripted_run_counts_what_it_did() {
    let server = TestServer::start().await;
    let stream = StreamConfig { model: "m".to_owned(), eos_token_ids: vec![3], ..config() };
    let mut worker = server.worker_with(stream).await;
    run(&mut worker).await;
    let expected = [
        ("num_drafts_total", "sent", "", 2.0),
        ("num_draft_tokens_total", "sent", "", 3.0),
        ("num_accepted_tokens_total", "sent", "", 2.0),
        ("num_tested_tokens_per_pos_total", "sent", ",position=\"0\"", 2.0),
        ("num_tested_tokens_per_pos_total", "sent", ",position=\"1\"", 1.0),
        ("num_accepted_tokens_per_pos_total", "sent", ",position=\"0\"", 1.0),
        ("num_accepted_tokens_per_pos_total", "sent", ",position=\"1\"", 1.0),
        ("num_rounds_by_length_total", "sent", ",text_tokens=\"256\",first=\"accepted\"", 1.0),
        ("num_rounds_by_length_total", "sent", ",text_tokens=\"256\",first=\"rejected\"", 1.0),
        ("num_emitted_tokens_total", "sent", ",lossless=\"true\"", 4.0),
        ("num_emitted_tokens_total", "sent", ",lossless=\"false\"", 0.0),
        ("last_tokens_total", "sent", ",kind=\"bonus\"", 1.0),
        ("last_tokens_total", "sent", ",kind=\"recovered\"", 1.0),
        ("last_tokens_total", "sent", ",kind=\"accepted\"", 0.0),
        ("num_measured_rejected_tokens_total", "sent", ",reason=\"ruled_out\"", 1.0),
        ("num_measured_rejected_tokens_total", "sent", ",reason=\"unlikely\"", 0.0),
        ("num_measured_rejected_tokens_total", "sent", ",reason=\"chance\"", 0.0),
        ("expected_acceptance_count", "sent", ",position=\"0\"", 2.0),
        ("expected_acceptance_sum", "sent", ",position=\"0\"", 0.75 + 0.5),
        ("expected_acceptance_sum", "sent", ",position=\"1\"", 0.75),
        ("num_measured_accepted_tokens_per_pos_total", "sent", ",position=\"0\"", 1.0),
        ("num_measured_accepted_tokens_per_pos_total", "sent", ",position=\"1\"", 1.0),
        ("total_variation_count", "sent", "", 3.0),
        ("total_variation_sum", "sent", "", 0.25 + 0.25 + 0.5),
        ("rejected_rank_count", "sent", ",reason=\"ruled_out\"", 1.0),
        ("rejected_rank_sum", "sent", ",reason=\"ruled_out\"", 6.0),
        ("rejected_rank_count", "sent", ",reason=\"unlikely\"", 0.0),
        ("draft_probability_count", "sent", "", 3.0),
        ("draft_probability_sum", "sent", "", 0.25 + 0.25 + 0.5),
        ("expected_draft_probability_sum", "sent", "", 0.625 + 0.625 + 0.5),
        // 1/64 + 27/64, less the square of .625.
        ("draft_probability_variance_sum", "sent", "", 2.0 * (0.4375 - 0.390_625)),
        ("num_drafts_total", "deterministic", "", 1.0),
        ("num_draft_tokens_total", "deterministic", "", 2.0),
        ("num_accepted_tokens_total", "deterministic", "", 1.0),
        ("num_tested_tokens_per_pos_total", "deterministic", ",position=\"0\"", 1.0),
        ("num_emitted_tokens_total", "deterministic", ",lossless=\"true\"", 1.0),
        ("last_tokens_total", "deterministic", ",kind=\"accepted\"", 1.0),
        ("expected_acceptance_sum", "deterministic", ",position=\"0\"", 1.0),
        ("total_variation_sum", "deterministic", "", 0.0),
    ];
    for (name, proposer, more, value) in expected {
        let series = format!("croupier_spec_decode_{name}{{model=\"m\",proposer=\"{proposer}\"{more}}}");
        assert_eq!(server.series(&series), value, "{series}");
    }
    assert_eq!(server.series("croupier_tokens_total{model=\"m\"}"), 6.0);
    assert_eq!(server.series("croupier_rows_total{model=\"m\",kind=\"verify\"}"), 9.0);
}

/// The length that counts is that of the text, without the draft tokens.
#[tokio::test]
async fn rounds_are_counted_by_the_length_of_their_text() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let prompts = [255, 256, 257, 1024, 1025].map(|len| vec![1; len]);
    let open = (1..)
        .zip(&prompts)
        .map(|(id, prompt)| OpenSequence { prompt_token_ids: prompt.clone(), ..open(id, seeded(1)) });
    worker.step(open_step(open.collect())).await;
    for (id, _) in (1..).zip(&prompts) {
        worker.verify(id, chain(&[0, 2], deterministic()), &[among(&[0]), among(&[1]), among(&[1])]).await;
    }
    worker.verify(1, chain(&[0], deterministic()), &[among(&[1]), among(&[1])]).await;
    for (length, first, expected) in
        [("256", "accepted", 2.0), ("1024", "accepted", 2.0), ("1024", "rejected", 1.0), ("4096", "accepted", 1.0)]
    {
        let labels = format!("model=\"default\",proposer=\"deterministic\",text_tokens=\"{length}\",first=\"{first}\"");
        let series = format!("croupier_spec_decode_num_rounds_by_length_total{{{labels}}}");
        assert_eq!(server.series(&series), expected, "{series}");
    }
}

/// In a tree that is judged token by token, acceptance is counted along the path that was taken, and statistics of the models by the first
/// token of each position.
#[tokio::test]
async fn a_judged_tree_counts_its_path() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let typical = AcceptanceParams { rule: AcceptanceRule::Typical.into(), ..Default::default() };
    worker.step(open_step(vec![open(1, SamplingParams { acceptance: Some(typical), ..seeded(1) })])).await;
    // Both children of the root pass. Below the first child no token passes, below the second two more.
    let verify = VerifyWork { parents: vec![-1, -1, 0, 1, 3], ..measured(chain(&[0, 1, 0, 0, 1], deterministic())) };
    let rows = [&[0, 1][..], &[1], &[0], &[5], &[1], &[5]].map(among);
    let work = worker.verify(1, verify, &rows).await;
    assert_eq!(ids(&work), [1, 0, 1, 5]);
    let told = [(0, true, 1.0, 0.5, 0), (1, true, 1.0, 0.5, 0), (2, false, 0.0, 1.0, 2), (3, true, 1.0, 0.0, 0)];
    assert_eq!(tests(&work)[..4], told);
    let expected = [
        ("num_accepted_tokens_total", "", 3.0),
        ("num_accepted_tokens_per_pos_total", ",position=\"0\"", 1.0),
        ("num_accepted_tokens_per_pos_total", ",position=\"1\"", 1.0),
        ("num_accepted_tokens_per_pos_total", ",position=\"2\"", 1.0),
        ("num_tested_tokens_per_pos_total", ",position=\"0\"", 2.0),
        ("num_tested_tokens_per_pos_total", ",position=\"1\"", 2.0),
        ("num_measured_accepted_tokens_per_pos_total", ",position=\"0\"", 2.0),
        ("num_measured_rejected_tokens_total", ",reason=\"ruled_out\"", 1.0),
        ("total_variation_count", "", 4.0),
        ("total_variation_sum", "", 0.5 + 1.0),
        ("rejected_rank_sum", ",reason=\"ruled_out\"", 2.0),
    ];
    for (name, more, value) in expected {
        let labels = format!("model=\"default\",proposer=\"deterministic\"{more}");
        assert_eq!(server.series(&format!("croupier_spec_decode_{name}{{{labels}}}")), value, "{name}{more}");
    }
}

/// Draft work whose token was never verified: the worker may have looked at the token and discarded it.
#[tokio::test]
async fn drawn_tokens_that_nobody_verifies_are_counted() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    worker.step(open_step(vec![open(1, seeded(1))])).await;
    let row = logits(1, 1);
    let mut unverified = 0.0;
    let all = [(3, Some(3), kept()), (3, Some(1), kept()), (2, Some(0), kept()), (2, None, kept())];
    // Tokens that are verified as if they were drawn from something else count as verified.
    let otherwise = [(3, Some(3), deterministic()), (3, Some(2), deterministic())];
    for (drawn, verified, from) in all.into_iter().chain(otherwise) {
        let mut tokens = Vec::new();
        for at in 0..drawn {
            tokens.push(worker.draft(1, DraftWork { restart: at == 0, ..Default::default() }, row.clone()).await);
        }
        match verified {
            Some(len) => drop(worker.verify(1, chain(&tokens[..len], from), &vec![row.clone(); len + 1]).await),
            None => drop(worker.step(sample_step(&[(1, row.clone())])).await),
        }
        unverified += f64::from(drawn) - verified.unwrap_or(0) as f64;
        let series = "croupier_spec_decode_num_unverified_tokens_total{model=\"default\"}";
        server.expect_series(series, unverified).await;
    }
    // The tokens of another draft are verified instead of the kept ones.
    let drawn = worker.draft(1, DraftWork { restart: true, ..Default::default() }, row.clone()).await;
    worker.verify(1, chain(&[(drawn + 1) % VOCAB], deterministic()), &vec![row.clone(); 2]).await;
    unverified += 1.0;
    // A restart drops tokens, and so does the close of a sequence. The latter do not count: there is no text that they could bias.
    for restart in [true, false, true] {
        worker.draft(1, DraftWork { restart, ..Default::default() }, row.clone()).await;
    }
    worker.step(Step { close_sequence_ids: vec![1], ..Default::default() }).await;
    let series = "croupier_spec_decode_num_unverified_tokens_total{model=\"default\"}";
    server.expect_series(series, unverified + 2.0).await;
}

/// Draft work that is verified as if its tokens had no distribution: the text is right, but fewer tokens are accepted.
#[tokio::test]
async fn drawn_tokens_that_are_sent_as_certain_are_counted() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let greedy = SamplingParams { temperature: Some(0.0), ..seeded(2) };
    worker.step(open_step(vec![open(1, seeded(1)), open(2, greedy)])).await;
    let (row, mut counted) = (logits(1, 1), 0.0);
    // The sequence, how many draft tokens are verified, which ones, whether as kept, and whether that loses acceptance.
    let own = |tokens: &[u32]| tokens.to_vec();
    let other = |tokens: &[u32]| tokens.iter().map(|token| (token + 1) % VOCAB).collect();
    type Case = (u64, usize, fn(&[u32]) -> Vec<u32>, bool, bool);
    let cases: [Case; 6] = [
        (1, 3, own, false, true),
        (1, 1, own, false, true),
        (1, 3, own, true, false),
        (1, 3, other, false, false),
        (1, 0, own, false, false),
        (2, 3, own, false, false),
    ];
    for (id, len, of, as_kept, loses) in cases {
        let mut tokens = Vec::new();
        for at in 0..3 {
            tokens.push(worker.draft(id, DraftWork { restart: at == 0, ..Default::default() }, row.clone()).await);
        }
        let from = if as_kept { kept() } else { deterministic() };
        worker.verify(id, chain(&of(&tokens[..len]), from), &vec![row.clone(); len + 1]).await;
        counted += f64::from(u8::from(loses));
        let series = "croupier_spec_decode_num_drafts_without_their_distribution_total{model=\"default\"}";
        server.expect_series(series, counted).await;
    }
}

#[tokio::test]
async fn what_a_rejection_points_to_is_told_apart() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    // Token 1 has about 0.02 of the target and all of the draft; token 2 has about a third of the target.
    let unlikely: Vec<f32> = (0..VOCAB)
        .map(|t| match t {
            0 => 14.0,
            1 => 10.0,
            _ => -30.0,
        })
        .collect();
    let bad_luck = among(&[2, 3, 4]);
    let mut seen = [0, 0];
    for id in 0..40 {
        worker.step(open_step(vec![open(id, seeded(id))])).await;
        let (at, token, row) = if id % 2 == 0 { (0, 1, &unlikely) } else { (1, 2, &bad_luck) };
        let work = worker.verify(id, measured(chain(&[token], deterministic())), &[row.clone(), row.clone()]).await;
        seen[at] += 1 - work.verify.unwrap().accepted_count;
    }
    assert!(seen.iter().all(|&rejections| rejections > 5), "{seen:?}");
    // The greedy rule accepts only the target's first token, however likely the second is.
    let acceptance = Some(AcceptanceParams { rule: AcceptanceRule::Greedy.into(), ..Default::default() });
    worker.step(open_step(vec![open(40, SamplingParams { acceptance, ..seeded(40) })])).await;
    worker.verify(40, measured(chain(&[3], deterministic())), &[bad_luck.clone(), bad_luck]).await;
    for (reason, rejections) in [("unlikely", seen[0]), ("chance", seen[1]), ("ruled_out", 0), ("rule", 1)] {
        let labels = format!("model=\"default\",proposer=\"deterministic\",reason=\"{reason}\"");
        let series = format!("croupier_spec_decode_num_measured_rejected_tokens_total{{{labels}}}");
        assert_eq!(server.series(&series), f64::from(rejections), "{reason}");
    }
}

#[tokio::test]
async fn some_verifications_are_measured_unasked() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let row = among(&[1, 2]);
    for id in 0..400 {
        worker.step(open_step(vec![open(id, seeded(id))])).await;
        let work = worker.verify(id, chain(&[1], deterministic()), &[row.clone(), row.clone()]).await;
        assert_eq!(work.verify.unwrap().tests, []);
        worker.step(Step { close_sequence_ids: vec![id], ..Default::default() }).await;
    }
    let labels = "{model=\"default\",proposer=\"deterministic\",position=\"0\"}";
    // One in sixteen: 25 of 400, with a standard deviation below 5. Chance exceeds these bounds once in 100,000 runs.
    let measured = server.series(&format!("croupier_spec_decode_expected_acceptance_count{labels}"));
    assert!((5.0..50.0).contains(&measured), "{measured}");
    assert_eq!(server.series(&format!("croupier_spec_decode_num_tested_tokens_per_pos_total{labels}")), 400.0);
}

/// The choice of verifications to measure unasked is independent of the numbers that decide acceptance: acceptance is the same among the
/// measured verifications as among all.
#[tokio::test]
async fn what_is_measured_unasked_is_not_what_is_accepted() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let row = among(&[1, 2]);
    let (trusting, each): (&[(u32, f32)], u64) = (&[(1, 0.9), (2, 0.1)], 100);
    let mut accepted = 0;
    for first in (0..2_000).step_by(each as usize) {
        let all = first..first + each;
        worker.step(open_step(all.clone().map(|id| open(id, seeded(id))).collect())).await;
        let work = all.clone().map(|id| verify_work(id, chain(&[1], sparse(&[trusting])))).collect();
        let rows = vec![row.clone(); 2 * each as usize];
        let result = worker.step(Step { work, logits: inline(&rows), ..Default::default() }).await;
        accepted += result.work.iter().map(|work| work.verify.as_ref().unwrap().accepted_count).sum::<u32>();
        worker.step(Step { close_sequence_ids: all.collect(), ..Default::default() }).await;
    }
    let series = |name: &str| {
        let labels = "{model=\"default\",proposer=\"sent\",position=\"0\"}";
        server.series(&format!("croupier_spec_decode_{name}{labels}"))
    };
    let measured = series("expected_acceptance_count");
    let share = series("num_measured_accepted_tokens_per_pos_total") / measured;
    // Token 1 is accepted with probability 0.5 / 0.9: 1111 of 2000 with a standard deviation of 22. The result never changes, since seeds
    // are fixed. Some 125 are measured at random, and the accepted share has a standard deviation of 0.044. Chance exceeds these bounds
    // once in a million runs.
    assert!((1_000..1_220).contains(&accepted), "{accepted}");
    assert!(measured > 70.0 && (0.33..0.78).contains(&share), "{share} of {measured}");
}

/// A block also judges the tokens after the rejected one. They do not count as tested, and the acceptance that a block expects is not
/// reported for single tokens.
#[tokio::test]
async fn a_block_counts_tests_up_to_the_rejected_token() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let acceptance = Some(AcceptanceParams { rule: AcceptanceRule::Block.into(), ..Default::default() });
    let (row, trusting): (_, &[(u32, f32)]) = (among(&[1, 2]), &[(1, 0.9), (2, 0.1)]);
    let (mut tested, mut accepted) = ([0; 3], [0; 3]);
    for id in 0..60 {
        worker.step(open_step(vec![open(id, SamplingParams { acceptance, ..seeded(id) })])).await;
        let verify = measured(chain(&[1; 3], sparse(&[trusting; 3])));
        let verify = worker.verify(id, verify, &vec![row.clone(); 4]).await.verify.unwrap();
        assert_eq!(verify.tests.len(), 3, "all are judged");
        let ranked: Vec<u32> =
            verify.tests.iter().filter(|test| test.rejected_rank > 0).map(|test| test.index).collect();
        assert_eq!(
            ranked,
            (0..3).filter(|&at| at == verify.accepted_count).collect::<Vec<_>>(),
            "one is rejected at most"
        );
        for at in 0..3 {
            tested[at] += u32::from(verify.accepted_count as usize >= at);
            accepted[at] += u32::from(verify.accepted_count as usize > at);
        }
    }
    assert!(tested[2] > 5 && accepted[2] > 5 && accepted[0] < 55, "{tested:?} {accepted:?}");
    for at in 0..3 {
        let labels = format!("model=\"default\",proposer=\"sent\",position=\"{at}\"");
        for (name, value) in [
            ("num_tested_tokens_per_pos_total", tested[at]),
            ("num_accepted_tokens_per_pos_total", accepted[at]),
            ("num_measured_accepted_tokens_per_pos_total", 0),
            ("expected_acceptance_count", 0),
        ] {
            let series = format!("croupier_spec_decode_{name}{{{labels}}}");
            assert_eq!(server.series(&series), f64::from(value), "{series}");
        }
    }
}
