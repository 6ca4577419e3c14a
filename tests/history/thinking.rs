//! Tokens are drawn with other filters while a text thinks.

use crate::support::*;
use crate::work::*;
use croupier::proto::*;

const PROMPT: [u32; 3] = [7, 8, 9];
const BEGIN: u32 = 3;
const END: [u32; 2] = [4, 5];
const LEN: usize = 80;

/// A model that begins and ends thinking every few tokens.
fn after(output: &[u32]) -> Vec<f32> {
    let mut row = logits(u64::from(*output.last().unwrap_or(&0)), 1 + output.len() as u64 % 7);
    let ends = if output.ends_with(&END[..1]) { END[1] } else { END[0] };
    row[BEGIN as usize] += 4.0;
    row[ends as usize] += 5.0;
    row
}

/// By definition: whether the text is after the start of a stretch of thinking and not after its end.
fn thinks(output: &[u32]) -> bool {
    let mut thinks = false;
    for at in 1..=output.len() {
        let text = &output[..at];
        thinks = if thinks { !text.ends_with(&END) } else { text.ends_with(&[BEGIN]) };
    }
    thinks
}

fn budget(filters: ThinkingBudgetParams) -> Option<ThinkingBudgetParams> {
    Some(ThinkingBudgetParams {
        start_token_ids: vec![BEGIN],
        end_token_ids: END.to_vec(),
        budget: u32::MAX,
        ..filters
    })
}

/// Parameters of the answer, and those that differ for thoughts.
fn cases() -> Vec<(&'static str, SamplingParams, ThinkingBudgetParams)> {
    let (p, t) = (SamplingParams::default, ThinkingBudgetParams::default);
    let drawn = ThinkingBudgetParams { temperature: Some(1.5), top_p: Some(0.9), ..t() };
    let greedy = SamplingParams { temperature: Some(0.0), ..p() };
    let chain = SamplingParams {
        temperature: Some(0.7),
        typical_p: Some(0.9),
        xtc_probability: Some(0.5),
        engine_order: EngineOrder::LlamaCpp.into(),
        ..p()
    };
    let penalised = SamplingParams { repetition_penalty: Some(1.2), dry_multiplier: Some(0.5), top_k: Some(9), ..p() };
    let ends = SamplingParams { top_p: Some(0.8), min_p: Some(0.02), min_eos_p: Some(0.2), ..greedy.clone() };
    let tests = ThinkingBudgetParams { top_k: Some(5), min_p: Some(0.05), ..t() };
    let synthid = watermark_params::Scheme::Synthid(SynthidParams { keys: vec![654, 400, 836], ..Default::default() });
    vec![
        ("a greedy answer", greedy, drawn.clone()),
        (
            "greedy thoughts",
            SamplingParams { top_p: Some(0.95), ..p() },
            ThinkingBudgetParams { temperature: Some(0.0), ..t() },
        ),
        ("a chain", chain.clone(), drawn.clone()),
        ("a greedy answer to a chain", SamplingParams { temperature: Some(0.0), ..chain }, drawn.clone()),
        ("penalties", penalised.clone(), ThinkingBudgetParams { top_k: Some(0), min_p: Some(0.01), ..drawn.clone() }),
        (
            "filters that were on are off",
            SamplingParams { min_p: Some(0.3), ..penalised },
            ThinkingBudgetParams { min_p: Some(0.0), top_p: Some(1.0), ..t() },
        ),
        (
            "SGLang's order by min_p",
            SamplingParams { engine_order: EngineOrder::Sglang.into(), top_p: Some(0.9), ..p() },
            tests,
        ),
        ("ends of the text in thoughts alone", ends, drawn.clone()),
        ("mirostat", SamplingParams { mirostat: Some(2), mirostat_tau: Some(2.0), ..p() }, drawn.clone()),
        ("adaptive-p", SamplingParams { adaptive_target: Some(0.3), min_p: Some(0.01), ..p() }, drawn.clone()),
        (
            "KoboldCpp's mirostat",
            SamplingParams { engine_order: EngineOrder::KoboldCpp.into(), mirostat: Some(1), ..p() },
            ThinkingBudgetParams { temperature: Some(1.5), ..t() },
        ),
        (
            "a top-p that decays",
            SamplingParams { top_p: Some(0.9), top_p_decay: Some(0.9), ..p() },
            ThinkingBudgetParams { top_k: Some(7), ..t() },
        ),
        ("a mark", SamplingParams { watermark: Some(WatermarkParams { scheme: Some(synthid) }), ..p() }, drawn),
    ]
}

fn opened(id: u64, params: &SamplingParams, output: &[u32]) -> OpenSequence {
    OpenSequence { prompt_token_ids: PROMPT.to_vec(), output_token_ids: output.to_vec(), ..open(id, params.clone()) }
}

/// The parameters of one phase alone.
fn phase(params: &SamplingParams, own: &ThinkingBudgetParams, thinks: bool) -> SamplingParams {
    if !thinks {
        return params.clone();
    }
    SamplingParams {
        temperature: own.temperature.or(params.temperature),
        top_k: own.top_k.or(params.top_k),
        top_p: own.top_p.or(params.top_p),
        min_p: own.min_p.or(params.min_p),
        ..params.clone()
    }
}

/// The text is the same as if it were closed wherever thinking begins or ends, and opened again with the other parameters and the state of
/// its samplers.
#[tokio::test]
async fn thoughts_are_drawn_by_filters_of_their_own() {
    let server = TestServer::start().await;
    let mut worker = server.worker_with(StreamConfig { eos_token_ids: vec![1], ..config() }).await;
    for (name, params, own) in cases() {
        let (mut turns, mut differ) = (0, false);
        for seed in 1..4 {
            let wanted = LogprobsParams { top_n: 4, mode: LogprobsMode::Processed.into(), token_ids: vec![] };
            let params = SamplingParams {
                seed: Some(seed),
                logprobs: Some(wanted),
                ignore_eos: Some(params.min_eos_p.is_none()),
                return_sampler_state: Some(true),
                ..params.clone()
            };
            let with = SamplingParams { thinking_budget: budget(own.clone()), ..params.clone() };
            let both = worker.step(open_step(vec![opened(1, &with, &[]), opened(2, &params, &[])])).await.open;
            both.iter().for_each(|open| assert_eq!(open.status(), OpenStatus::Ok, "{name}: {:?}", open.error));
            let (mut text, mut thought, mut sampler_state) = (Vec::new(), false, None);
            for _ in 0..LEN {
                if thinks(&text) != thought {
                    (thought, turns) = (!thought, turns + 1);
                    let again =
                        vec![OpenSequence { sampler_state, ..opened(2, &phase(&params, &own, thought), &text) }];
                    worker.step(Step { close_sequence_ids: vec![2], open: again, ..Default::default() }).await;
                }
                let row = after(&text);
                let expected = only(worker.step(step_of(sample_work(2), std::slice::from_ref(&row))).await);
                let work = only(worker.step(step_of(sample_work(1), &[row])).await);
                assert_eq!(work.tokens, expected.tokens, "{name}, seed {seed}, behind {text:?}");
                assert_eq!(work.finish_reason(), expected.finish_reason());
                assert_eq!(work.sampler_state, expected.sampler_state);
                sampler_state = expected.sampler_state;
                text.extend(ids(&work));
                if work.finish_reason() != FinishReason::Unspecified {
                    break;
                }
            }
            let plain = SamplingParams { thinking_budget: budget(Default::default()), ..params };
            worker
                .step(Step { close_sequence_ids: vec![1, 2], open: vec![opened(3, &plain, &[])], ..Default::default() })
                .await;
            for at in 0..text.len() {
                differ |= ids(&only(worker.step(step_of(sample_work(3), &[after(&text[..at])])).await)) != [text[at]];
            }
            worker.step(Step { close_sequence_ids: vec![3], ..Default::default() }).await;
        }
        assert!(turns > 8 && differ, "{name}: {turns} turns");
    }
}

/// Draft tokens up to the end of thinking are verified as thoughts, later ones as the answer.
#[tokio::test]
async fn a_draft_may_cross_the_end_of_thinking() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let row = |best: u32, logit: f32| (0..VOCAB).map(|t| if t == best { logit } else { 0.0 }).collect::<Vec<f32>>();
    // Thoughts are drawn evenly from all tokens, except for a logit that is far too large for that temperature. The answer is greedy.
    let thinking_budget = budget(ThinkingBudgetParams { temperature: Some(1e5), ..Default::default() });
    let (mut of_the_answer, mut of_thoughts) = (0, 0);
    for seed in 0..64 {
        let params =
            SamplingParams { temperature: Some(0.0), thinking_budget: thinking_budget.clone(), ..seeded(seed) };
        let texts = [2 * seed, 2 * seed + 1].map(|id| opened(id, &params, &[BEGIN, 20, END[0]]));
        worker.step(open_step(texts.to_vec())).await;
        let rows = [row(END[1], 1e7), row(30, 2.0), row(31, 2.0), row(32, 2.0)];
        let work = worker.verify(2 * seed, chain(&[END[1], 30, 31], deterministic()), &rows).await;
        of_the_answer += u32::from(ids(&work) == [END[1], 30, 31, 32]);
        let rows = [row(20, 1e7), row(30, 2.0), row(31, 2.0), row(32, 2.0)];
        let work = worker.verify(2 * seed + 1, chain(&[20, 30, 31], deterministic()), &rows).await;
        of_thoughts += u32::from(ids(&work)[..2] == [20, 30]);
    }
    // A thought is the most likely token once in 50 times: more than 9 of 64 are with a probability below 1e-6.
    assert!(of_the_answer == 64 && of_thoughts < 10, "{of_the_answer} {of_thoughts}");
}

/// Draft work uses these filters too: verified with the same rows, every draft token is accepted, and no problem is reported.
#[tokio::test]
async fn drafts_are_drawn_as_thoughts_and_answers() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let own = ThinkingBudgetParams { temperature: Some(2.0), top_k: Some(20), ..Default::default() };
    let (mut crossed, mut drafted) = (0, 0);
    for seed in 0..24 {
        let params = SamplingParams { temperature: Some(0.3), thinking_budget: budget(own.clone()), ..seeded(seed) };
        worker.step(open_step(vec![opened(seed, &params, &[])])).await;
        let mut text = Vec::new();
        while text.len() < 40 {
            let mut draft: Vec<u32> = Vec::new();
            for _ in 0..5 {
                let row = after(&[&text[..], &draft].concat());
                draft.push(worker.draft(seed, DraftWork::default(), row).await);
            }
            let rows: Vec<_> = (0..=draft.len()).map(|at| after(&[&text[..], &draft[..at]].concat())).collect();
            let work = worker.verify(seed, chain(&draft, kept()), &rows).await;
            assert!(ids(&work).starts_with(&draft), "seed {seed}: {draft:?} and {:?}", ids(&work));
            crossed +=
                u32::from((1..draft.len()).any(|at| thinks(&[&text[..], &draft[..at]].concat()) != thinks(&text)));
            drafted += 1;
            text.extend(ids(&work));
        }
    }
    assert!(crossed > 40, "{crossed} of {drafted}");
}
