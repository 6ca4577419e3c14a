//! The eight sequences: the parameters of each, and its results.

use crate::support::corpus::{END_OF_TEXT, VOCAB_SIZE};
use croupier::proto::{FinishReason, LogitBias, LogprobsMode, LogprobsParams, SamplingParams, TokenSequence};
use std::collections::BTreeMap;
use tiktoken_rs::CoreBPE;

const PROMPTS: [&str; 7] = [
    "The Fox and the",
    "Once upon a time there was",
    "A Lion",
    "The Old",
    "A Crow",
    "The Wolf and the",
    "Once upon a time a Wolf",
];
/// Beginnings of texts without the letter e.
const PROMPTS_WITHOUT_E: [&str; 6] = ["A Lion", "A Fox", "Said a Cat", "A Bull", "An Ass", "A Cock"];
/// Beginnings of texts without the word "the".
const PROMPTS_WITHOUT_THE: [&str; 5] = ["Once upon a time", "A Fox", "One winter a Farmer", "A famished Fox", "Alice"];
/// Longest text, if it does not end by itself.
const MAX_TOKENS: u32 = 240;
/// Number of tokens that fill an excerpt.
const ENOUGH_TO_SHOW: usize = 50;
/// Longest text with greedy decoding, which soon repeats itself.
const MAX_TOKENS_GREEDY: u32 = 120;

/// A sequence of the demo, over all its texts: when one text ends, the next one begins.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) label: &'static str,
    /// A short description of the parameters.
    pub(crate) summary: String,
    params: SamplingParams,
    prompts: &'static [&'static str],
    /// The current text: an end of text, the prompt, the output.
    pub(crate) context: Vec<u32>,
    /// Length of the prompt's part of `context`.
    pub(crate) prompt_len: usize,
    /// Number of texts begun.
    pub(crate) texts: u64,
    /// All emitted tokens of all texts.
    pub(crate) tokens: Vec<u32>,
    pub(crate) logprob_sum: f64,
    /// How many texts ended for each reason.
    pub(crate) finishes: BTreeMap<&'static str, u32>,
    /// The first ended text that is long enough to show, or the longest one.
    shown: Option<Vec<u32>>,
}

impl Lane {
    fn new(label: &'static str, summary: impl Into<String>, params: SamplingParams) -> Self {
        Self {
            label,
            summary: summary.into(),
            params,
            prompts: &PROMPTS,
            context: Vec::new(),
            prompt_len: 0,
            texts: 0,
            tokens: Vec::new(),
            logprob_sum: 0.0,
            finishes: BTreeMap::new(),
            shown: None,
        }
    }

    /// Begins the next text. Returns its prompt and parameters. Each text has its own seed.
    pub(crate) fn begin(&mut self, tokenizer: &CoreBPE) -> (Vec<u32>, SamplingParams) {
        let mut params = self.params.clone();
        params.seed = params.seed.map(|seed| seed + self.texts);
        // The seed also decides where a text begins, so that lanes do not all begin in the same way.
        let prompt = self.prompts[params.seed.unwrap_or_default() as usize % self.prompts.len()];
        self.texts += 1;
        self.context = vec![END_OF_TEXT];
        self.context.extend(tokenizer.encode_ordinary(prompt));
        self.prompt_len = self.context.len();
        (self.context[1..].to_vec(), params)
    }

    /// Takes the token that was drawn.
    pub(crate) fn push(&mut self, token: u32, logprob: Option<f32>, finish: FinishReason) {
        self.context.push(token);
        self.tokens.push(token);
        self.logprob_sum += f64::from(logprob.unwrap_or(f32::NAN));
        if finish != FinishReason::Unspecified {
            *self.finishes.entry(finish_name(finish)).or_default() += 1;
            let shown = self.shown.as_ref().map_or(0, Vec::len);
            if shown < self.context.len().min(ENOUGH_TO_SHOW) {
                self.shown = Some(self.context.clone());
            }
        }
    }

    /// A text to show in the report.
    pub(crate) fn excerpt(&self) -> &[u32] {
        self.shown.as_ref().unwrap_or(&self.context)
    }

    /// Tokens that may not be emitted.
    pub(crate) fn banned(&self) -> &[u32] {
        &self.params.banned_token_ids
    }
}

fn finish_name(finish: FinishReason) -> &'static str {
    match finish {
        FinishReason::Unspecified => "unspecified",
        FinishReason::Eos => "eos",
        FinishReason::StopToken => "stop_token",
        FinishReason::MaxTokens => "max_tokens",
        FinishReason::Repetition => "repetition",
        FinishReason::StopSequence => "stop_sequence",
    }
}

/// What all lanes share: a seed, a maximal length, and logprobs of the model's own distribution.
fn params(seed: u64) -> SamplingParams {
    SamplingParams {
        temperature: Some(1.0),
        max_tokens: Some(MAX_TOKENS),
        seed: Some(seed),
        logprobs: Some(LogprobsParams { top_n: 0, mode: LogprobsMode::Raw.into(), token_ids: Vec::new() }),
        ..SamplingParams::default()
    }
}

/// All lanes. `seen` are the tokens of the training text.
pub(crate) fn lanes(tokenizer: &CoreBPE, seen: &[u32]) -> Vec<Lane> {
    vec![
        greedy(),
        creative(),
        chat(),
        penalised(),
        biased(tokenizer),
        lipogram(tokenizer, seen),
        twin("twin A"),
        twin("twin B"),
    ]
}

fn greedy() -> Lane {
    let max_tokens = Some(MAX_TOKENS_GREEDY);
    Lane::new("greedy", "temperature 0", SamplingParams { temperature: Some(0.0), max_tokens, ..params(1) })
}

fn creative() -> Lane {
    let params = SamplingParams { temperature: Some(1.4), min_p: Some(0.02), ..params(2) };
    Lane::new("creative", "temperature 1.4, min_p 0.02", params)
}

fn chat() -> Lane {
    let params = SamplingParams { temperature: Some(0.7), top_k: Some(40), top_p: Some(0.9), ..params(3) };
    Lane::new("chat", "temperature 0.7, top_k 40, top_p 0.9", params)
}

fn penalised() -> Lane {
    let params = SamplingParams {
        temperature: Some(0.5),
        repetition_penalty: Some(1.2),
        frequency_penalty: Some(0.4),
        ..params(4)
    };
    Lane::new("penalised", "temperature 0.5, repetition 1.2, frequency 0.4", params)
}

fn biased(tokenizer: &CoreBPE) -> Lane {
    let ids = |words: &[&str]| words.iter().flat_map(|word| tokenizer.encode_ordinary(word)).collect::<Vec<_>>();
    let bias = |token_id| LogitBias { token_id, bias: 6.0 };
    let params = SamplingParams {
        temperature: Some(0.8),
        top_p: Some(0.95),
        banned_token_ids: ids(&["the", " the", "The", " The", "THE", " THE"]),
        logit_bias: ids(&[" Cat", " Mouse"]).into_iter().map(bias).collect(),
        bad_words: vec![TokenSequence { token_ids: ids(&[" a Fox"]) }],
        ..params(5)
    };
    let lane = Lane::new("biased", "no \"the\", no \"a Fox\", +6 on Cat and Mouse", params);
    Lane { prompts: &PROMPTS_WITHOUT_THE, ..lane }
}

/// Only those tokens of the training text may be emitted that contain no e.
fn lipogram(tokenizer: &CoreBPE, seen: &[u32]) -> Lane {
    let mut allowed_token_ids: Vec<u32> = seen.iter().copied().filter(|&token| has_no_e(tokenizer, token)).collect();
    allowed_token_ids.sort_unstable();
    allowed_token_ids.dedup();
    let summary = format!("allowed_token_ids: the {} tokens without an e", allowed_token_ids.len());
    let params = SamplingParams { temperature: Some(0.8), top_p: Some(0.95), allowed_token_ids, ..params(6) };
    Lane { prompts: &PROMPTS_WITHOUT_E, ..Lane::new("no letter e", summary, params) }
}

fn has_no_e(tokenizer: &CoreBPE, token: u32) -> bool {
    debug_assert!((token as usize) < VOCAB_SIZE);
    let bytes = tokenizer.decode_bytes(&[token]).unwrap_or_default();
    // Bytes beyond ASCII could be an e with an accent, or a part of one.
    token == END_OF_TEXT || bytes.iter().all(|&byte| byte.is_ascii() && !byte.eq_ignore_ascii_case(&b'e'))
}

/// One of two lanes that must produce the same text, although their rows are at different places in every message.
fn twin(label: &'static str) -> Lane {
    let params = SamplingParams { temperature: Some(0.9), top_p: Some(0.95), ..params(7) };
    Lane::new(label, "temperature 0.9, top_p 0.95, seed 7", params)
}
