//! The lanes. They have the same target model, prompts and seeds, but their draft tokens come from different sources.

use crate::Args;
use crate::sent::CANDIDATES;
use crate::support::corpus::END_OF_TEXT;
use croupier::proto::{DraftLengthParams, LogprobsMode, LogprobsParams, ProposerKind, ProposerParams, SamplingParams};

/// Longest text, if it does not end by itself.
const MAX_TOKENS: u32 = 160;
/// A prompt quotes documents until it has this many tokens.
const QUOTED: usize = 3000;
/// The prompt ends with this many first tokens of the first document, so that the model more or less repeats it.
const BEGINNING: usize = 4;
/// Offset of the seeds of lanes that draw draft tokens themselves. These seeds must differ from those of the texts.
const DRAFTER_SEED: u64 = 1 << 40;

/// The source of a lane's draft tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Drafts {
    /// No drafts: sample work, with a row for each token.
    Nowhere,
    /// Draft work: rows of a draft model, from which the server draws. The server keeps the distributions.
    Kept,
    /// The proposer inside the sidecar, by its name. There are no draft model and no draft rows.
    Proposed(&'static str),
    /// The worker draws at the temperature `drawn`, and sends the distribution at the sequence's temperature.
    Sent { drawn: f64 },
}

/// A lane: its source of drafts and its parameters.
#[derive(Debug, Clone)]
pub(crate) struct Lane {
    pub(crate) label: &'static str,
    /// The model label in the metrics.
    pub(crate) model: &'static str,
    pub(crate) summary: String,
    pub(crate) drafts: Drafts,
    /// The parameters without a seed.
    params: SamplingParams,
}

impl Lane {
    /// The parameters of text number `text`.
    pub(crate) fn params(&self, seed: u64, text: usize) -> SamplingParams {
        SamplingParams { seed: Some(seed.wrapping_add(text as u64)), ..self.params.clone() }
    }

    /// Whether draft tokens are drawn from the distributions that the lane claims.
    pub(crate) fn is_honest(&self, temperature: f64) -> bool {
        !matches!(self.drafts, Drafts::Sent { drawn } if drawn != temperature)
    }

    /// The seed of the worker's own random numbers.
    pub(crate) fn drafter_seed(seed: u64) -> u64 {
        seed.wrapping_add(DRAFTER_SEED)
    }
}

/// All lanes. The others are compared with the first one.
pub(crate) fn lanes(args: &Args) -> Vec<Lane> {
    let plain = SamplingParams {
        temperature: Some(args.temperature as f32),
        top_k: Some(CANDIDATES as u32),
        max_tokens: Some(MAX_TOKENS),
        // For each token: its rank in the distribution it was drawn from, and the probability of the most likely token.
        logprobs: Some(LogprobsParams { top_n: 1, mode: LogprobsMode::Processed.into(), token_ids: Vec::new() }),
        ..SamplingParams::default()
    };
    let advice = |draft_cost| {
        // With shifted rows nothing is accepted, so the advice would soon be to draft nothing.
        args.shift_rows.is_none().then_some(DraftLengthParams {
            draft_cost,
            verify_cost: args.verify_cost,
            max_draft_tokens: Some(args.draft_length),
        })
    };
    let kept = SamplingParams { draft_length: advice(args.draft_cost), ..plain.clone() };
    let proposer = ProposerParams {
        kind: args.proposer.wire().into(),
        max_draft_tokens: Some(args.draft_length),
        ..ProposerParams::default()
    };
    let proposed = SamplingParams { proposer: Some(proposer), draft_length: advice(0.0), ..plain.clone() };
    let (order, length, name) = (args.draft_order, args.draft_length, args.proposer.name());
    let claimed = args.temperature;
    let lane = |label, model, summary: String, drafts, params: &SamplingParams| Lane {
        label,
        model,
        summary,
        drafts,
        params: params.clone(),
    };
    vec![
        lane("plain", "spec-plain", "no speculation: a row for each token".into(), Drafts::Nowhere, &plain),
        lane(
            "draft model",
            "spec-draft-model",
            format!("draft work with a model of order {order}, as long as is advised, verified as KeptDraft"),
            Drafts::Kept,
            &kept,
        ),
        lane(
            "proposer",
            "spec-proposer",
            format!("{name} inside the sidecar, as long as is advised, verified as DeterministicDraft"),
            Drafts::Proposed(name),
            &proposed,
        ),
        lane(
            "sent",
            "spec-sent",
            format!("the worker draws {length} at temperature {claimed} and sends that as SparseDraft"),
            Drafts::Sent { drawn: claimed },
            &plain,
        ),
        lane(
            "broken",
            "spec-broken",
            format!("the same, but it draws at temperature {}", args.broken_temperature()),
            Drafts::Sent { drawn: args.broken_temperature() },
            &plain,
        ),
    ]
}

/// The proposer of the lane that has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Proposer {
    Suffix,
    Ngram,
}

impl Proposer {
    fn wire(self) -> ProposerKind {
        match self {
            Self::Suffix => ProposerKind::Suffix,
            Self::Ngram => ProposerKind::Ngram,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Suffix => "suffix matching",
            Self::Ngram => "prompt lookup",
        }
    }
}

/// The beginnings of texts: documents to quote from, followed by the beginning of the first one.
#[derive(Debug)]
pub(crate) struct Prompts(Vec<Vec<u32>>);

impl Prompts {
    /// Prompts from documents as tokens. Documents that are too short are left out.
    pub(crate) fn new(documents: impl Iterator<Item = Vec<u32>>) -> Self {
        Self(documents.filter(|document| document.len() > BEGINNING).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The prompt of text number `text`. Another seed gives another prompt.
    pub(crate) fn get(&self, seed: u64, text: usize) -> Vec<u32> {
        let first = seed.wrapping_mul(31).wrapping_add(text as u64 * 7) % self.0.len() as u64;
        let documents = self.0.iter().cycle().skip(first as usize).take(self.0.len());
        let mut prompt = vec![END_OF_TEXT];
        for document in documents {
            prompt.extend(document.iter().chain([&END_OF_TEXT]));
            if prompt.len() > QUOTED {
                break;
            }
        }
        prompt.extend(&self.0[first as usize][..BEGINNING]);
        prompt
    }

    /// The part of a prompt to show: the beginning of the text.
    pub(crate) fn shown(prompt: &[u32]) -> &[u32] {
        &prompt[prompt.len().saturating_sub(BEGINNING)..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_quotes_documents_and_begins_the_first_one_again() {
        let prompts = Prompts::new([vec![1; BEGINNING], vec![2; 20], vec![3; QUOTED], vec![4; 9]].into_iter());
        let prompt = prompts.get(0, 0);
        assert_eq!((prompt.len(), prompt[1], prompt[22], Prompts::shown(&prompt)), (QUOTED + 27, 2, 3, &[2; 4][..]));
        assert_eq!(Prompts::shown(&prompts.get(0, 1)), [3; 4], "the next text begins with another one");
        assert!(Prompts::new([vec![1; BEGINNING]].into_iter()).is_empty());
    }
}
