//! What a sequence remembers to propose draft tokens and to say how many are worth while.

use super::{Sequence, Text};
use crate::grammar::propose::Proposed;
use crate::params::{DraftLengthParams, MAX_DRAFT_TOKENS, ProposerKind, SamplingParams};
use crate::speculative::advice::Acceptance;
use crate::speculative::propose::Proposer;
use crate::speculative::verified::Trial;

/// For sequences that ask for a proposer or for advice.
#[derive(Debug, Clone, PartialEq)]
pub struct Speculation {
    proposer: Option<(ProposerKind, Proposer)>,
    length: Option<DraftLengthParams>,
    seen: Acceptance,
    /// What was proposed and advised last.
    last: NextDraft,
    /// Whether a grammar forces what was proposed last.
    is_forced: bool,
    /// How many tokens prompt and output may have.
    most_tokens: u64,
}

/// What to draft next.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NextDraft {
    /// Draft tokens that follow one another.
    pub tokens: Vec<u32>,
    /// How many draft tokens are worth while, if that was asked.
    pub advised: Option<u32>,
}

impl Speculation {
    /// After `prompt` and `output`; nothing if nothing is asked for.
    pub(super) fn new(params: &SamplingParams, prompt: &[u32], output: &[u32]) -> Option<Box<Self>> {
        let proposer = params.proposer.as_ref().map(|asked| (asked.kind, Proposer::new(asked, prompt, output)));
        let length = params.draft_length;
        let asked = proposer.is_some() || length.is_some();
        let (seen, last) = (Acceptance::default(), NextDraft::default());
        asked.then(|| Box::new(Self { proposer, length, seen, last, is_forced: false, most_tokens: u64::MAX }))
    }

    /// Appends an emitted token.
    pub(super) fn push(&mut self, token: u32) {
        if let Some((_, proposer)) = &mut self.proposer {
            proposer.push(token);
        }
    }

    /// Takes in what came of a draft; no trial means that there was none, or none that says anything of the next.
    pub(super) fn record(&mut self, trials: &[Trial]) {
        if trials.is_empty() && self.last.advised == Some(0) {
            self.seen.record_skipped();
        }
        // A depth is accepted if one of its siblings is.
        let depths = trials.iter().map(|trial| trial.depth + 1).max().unwrap_or(0);
        for depth in 0..depths {
            self.seen.record(depth, trials.iter().any(|trial| trial.depth == depth && trial.accepted));
        }
    }

    /// What to draft next, where `most` draft tokens could be of use.
    pub(super) fn next(&mut self, most: usize) -> NextDraft {
        let advised = self.length.as_ref().map(|length| self.seen.advise(length));
        let advised = advised.map(|advised| advised.min(u32::try_from(most).unwrap_or(u32::MAX)));
        let most = advised.map_or(most, |advised| advised as usize);
        let tokens = self.proposer.as_ref().map(|(_, proposer)| proposer.propose(most)).unwrap_or_default();
        (self.last, self.is_forced) = (NextDraft { tokens, advised }, false);
        self.last.clone()
    }

    /// How many tokens may be proposed at once; 0: none was asked for.
    pub(super) fn most_proposed(&self) -> usize {
        self.proposer.as_ref().map_or(0, |(_, proposer)| proposer.most())
    }

    /// What to draft next, where the text has a grammar, after [`next`](Self::next). What is forced is worth while, whatever became of
    /// other drafts.
    pub(super) fn by_grammar(&mut self, proposed: Proposed) -> NextDraft {
        let Proposed { tokens, is_forced } = proposed;
        let forced = if is_forced { tokens.len() as u32 } else { 0 };
        let advised = self.last.advised.map(|advised| advised.max(forced));
        (self.last, self.is_forced) = (NextDraft { tokens, advised }, is_forced);
        self.last.clone()
    }

    /// What was proposed last.
    #[must_use]
    pub fn proposed(&self) -> &[u32] {
        &self.last.tokens
    }

    /// The proposer inside the sidecar that these draft tokens came from, as far as can be told.
    #[must_use]
    pub fn proposer_of(&self, draft: &[u32]) -> Option<ProposerKind> {
        let (kind, _) = self.proposer.as_ref()?;
        let kind = if self.is_forced { ProposerKind::Grammar } else { *kind };
        (!draft.is_empty() && self.last.tokens.starts_with(draft)).then_some(kind)
    }

    /// Memory held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let proposer = self.proposer.as_ref().map_or(0, |(_, proposer)| proposer.bytes());
        // What was seen has a bound of its own.
        size_of::<Self>() + proposer + self.last.tokens.capacity() * size_of::<u32>() + Acceptance::MAX_BYTES
    }

    /// Memory held once `more` tokens are emitted, at most.
    #[must_use]
    pub fn bytes_after(&self, more: usize) -> usize {
        let proposer = self.proposer.as_ref().map_or(0, |(_, proposer)| proposer.bytes_after(more));
        let proposed = self.last.tokens.capacity().max(MAX_DRAFT_TOKENS as usize) * size_of::<u32>();
        size_of::<Self>() + proposer + proposed + Acceptance::MAX_BYTES
    }
}

impl Sequence {
    /// The same where a text may have so many tokens, its prompt among them.
    #[must_use]
    pub fn within(mut self, most: usize) -> Self {
        if let Some(speculation) = &mut self.speculation {
            speculation.most_tokens = most as u64;
        }
        self
    }

    /// How many draft tokens could be of use. The last token of a text comes without a draft token of its own, and a verification that
    /// could reach beyond the longest text is refused.
    fn most_drafted(&self) -> usize {
        let most = self.speculation.as_ref().map_or(0, |speculation| speculation.most_tokens);
        let room = most.saturating_sub(self.history_len()).max(1);
        self.remaining().min(usize::try_from(room).unwrap_or(usize::MAX)) - 1
    }

    /// Takes in what came of a draft, no trial if there was none, and says what to draft next.
    pub fn next_draft(&mut self, trials: &[Trial]) -> NextDraft {
        let most = self.most_drafted();
        let Some(speculation) = self.speculation.as_mut().filter(|_| self.finished.is_none()) else {
            return NextDraft::default();
        };
        speculation.record(trials);
        speculation.next(most)
    }

    /// Where it stands in its grammar, what it would draft next otherwise, and how many tokens that may be; `None` where a
    /// grammar has no part in that.
    #[must_use]
    pub fn draft_by_grammar(&self) -> Option<(&Text, Vec<u32>, usize)> {
        let (text, speculation) = (self.text()?, self.speculation.as_deref()?);
        let most = speculation.most_proposed().min(self.most_drafted());
        (most > 0 && self.finished.is_none()).then(|| (text, speculation.proposed().to_vec(), most))
    }

    /// Takes in what its grammar makes of what was proposed, and says what to draft next.
    pub fn drafts_by_grammar(&mut self, proposed: Proposed) -> NextDraft {
        self.speculation.as_mut().map(|speculation| speculation.by_grammar(proposed)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::ProposerParams;

    fn speculation(advice: bool) -> Speculation {
        let params = SamplingParams {
            proposer: Some(ProposerParams::new(ProposerKind::Ngram)),
            draft_length: advice.then(|| DraftLengthParams::new(0.9)),
            ..SamplingParams::default()
        };
        *Speculation::new(&params, &[1, 2, 3, 4, 5, 6, 7, 1, 2], &[3]).expect("it is asked for")
    }

    fn trial(depth: usize, accepted: bool) -> Trial {
        let (expected, total_variation, chances, rejected_rank) = (None, None, None, None);
        Trial {
            index: depth,
            depth,
            number: 0,
            is_first: true,
            accepted,
            expected,
            total_variation,
            chances,
            rejected_rank,
            shifts: Default::default(),
        }
    }

    #[test]
    fn nothing_asked_nothing_remembered() {
        assert_eq!(Speculation::new(&SamplingParams::default(), &[1; 9], &[]), None);
    }

    #[test]
    fn its_own_proposals_are_known_again() {
        let mut speculation = speculation(false);
        let next = speculation.next(usize::MAX);
        assert_eq!((&next.tokens[..4], next.advised), (&[4, 5, 6, 7][..], None));
        assert_eq!(speculation.next(2).tokens, [4, 5], "no more than can be emitted");
        let next = speculation.next(usize::MAX);
        assert!(next.tokens.len() > 2);
        let of = |draft: &[u32]| speculation.proposer_of(draft);
        assert_eq!((of(&[4, 5]), of(&[4, 6]), of(&[])), (Some(ProposerKind::Ngram), None, None));
    }

    #[test]
    fn proposals_are_as_long_as_is_advised() {
        let mut speculation = speculation(true);
        for _ in 0..50 {
            speculation.record(&[trial(0, true), trial(1, false)]);
        }
        let next = speculation.next(usize::MAX);
        assert_eq!((next.tokens, next.advised), (vec![4], Some(1)));
        // Siblings: one accepted is enough.
        for _ in 0..200 {
            let later = Trial { is_first: false, ..trial(0, true) };
            speculation.record(&[trial(0, false), later, trial(1, true), trial(2, true), trial(3, true)]);
        }
        assert!(speculation.next(usize::MAX).advised > Some(3));
        for _ in 0..200 {
            speculation.record(&[trial(0, false)]);
        }
        assert_eq!(speculation.next(usize::MAX), NextDraft { tokens: vec![], advised: Some(0) });
        for _ in 0..200 {
            speculation.record(&[]);
            speculation.next(usize::MAX);
        }
        assert_eq!(speculation.next(usize::MAX).advised, Some(1), "it is tried again some time");
    }
}
