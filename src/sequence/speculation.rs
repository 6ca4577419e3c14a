//! What a sequence remembers to propose draft tokens, and to advise how many are worth while.

use super::Sequence;
use crate::grammar::propose::{Proposed, ToDraft};
use crate::params::{DraftLengthParams, MAX_DRAFT_TOKENS, ProposerKind, SamplingParams};
use crate::speculative::advice::Acceptance;
use crate::speculative::propose::Proposer;
use crate::speculative::verified::Trial;

/// Exists for sequences that ask for a proposer or for advice.
#[derive(Debug, Clone, PartialEq)]
pub struct Speculation {
    proposer: Option<(ProposerKind, Proposer)>,
    length: Option<DraftLengthParams>,
    seen: Acceptance,
    /// What was proposed and advised last.
    last: NextDraft,
    /// Where the last proposal came from; `None` if there is no proposer and nothing forced it.
    origin: Option<DraftOrigin>,
    /// The last advice by past acceptance alone, without regard to certain tokens.
    learned: Option<u32>,
    /// How many tokens prompt and output may have together.
    most_tokens: u64,
}

/// Where proposed draft tokens come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DraftOrigin {
    /// The proposer that was asked for found them in the text.
    Found(ProposerKind),
    /// A proposer found them in what the worker predicted.
    Predicted,
    /// The text's grammar forces them.
    Grammar,
    /// The text's thinking budget is spent and forces them.
    Thinking,
}

/// What to draft next.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NextDraft {
    /// Draft tokens, each following the one before it.
    pub tokens: Vec<u32>,
    /// How many draft tokens are worth while, if advice was asked for.
    pub advised: Option<u32>,
}

impl Speculation {
    /// The state after `prompt` and `output`, of which `predicted` may be repeated; `None` if the parameters ask for
    /// neither a proposer nor advice.
    pub(super) fn new(params: &SamplingParams, prompt: &[u32], output: &[u32], predicted: &[u32]) -> Option<Box<Self>> {
        let found_in = |asked| Proposer::predicting(asked, prompt, output, predicted);
        let proposer = params.proposer.as_ref().map(|asked| (asked.kind, found_in(asked)));
        let length = params.draft_length;
        let asked = proposer.is_some() || length.is_some();
        let (seen, last) = (Acceptance::default(), NextDraft::default());
        asked.then(|| {
            Box::new(Self { proposer, length, seen, last, origin: None, learned: None, most_tokens: u64::MAX })
        })
    }

    /// Appends an emitted token.
    pub(super) fn push(&mut self, token: u32) {
        if let Some((_, proposer)) = &mut self.proposer {
            proposer.push(token);
        }
    }

    /// Records the outcome of a draft. No trials mean that there was no draft, or none that says anything about the
    /// next one.
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

    /// What to draft next. More than `most` draft tokens would be of no use.
    pub(super) fn next(&mut self, most: usize) -> NextDraft {
        let advised = self.length.as_ref().map(|length| self.seen.advise(length));
        let advised = advised.map(|advised| advised.min(u32::try_from(most).unwrap_or(u32::MAX)));
        let most = advised.map_or(most, |advised| advised as usize);
        let found = self.proposer.as_ref().map(|(_, proposer)| proposer.propose(most)).unwrap_or_default();
        (self.last, self.learned) = (NextDraft { tokens: found.tokens, advised }, advised);
        let origin = |kind| if found.is_predicted { DraftOrigin::Predicted } else { DraftOrigin::Found(kind) };
        self.origin = self.proposer.as_ref().map(|(kind, _)| origin(*kind));
        self.last.clone()
    }

    /// Shortens the last proposal to the `kept` draft tokens that can still come.
    fn cut(&mut self, kept: usize) -> NextDraft {
        self.last.tokens.truncate(kept);
        if self.origin == Some(DraftOrigin::Thinking) {
            self.last.advised = self.advised_for(self.last.tokens.len());
        }
        self.last.clone()
    }

    /// What to advise if so many draft tokens are certain.
    fn advised_for(&self, certain: usize) -> Option<u32> {
        let most = self.length.map_or(MAX_DRAFT_TOKENS, |length| length.max_draft_tokens);
        self.learned.map(|learned| learned.max(most.min(certain as u32)))
    }

    /// Replaces the proposal of [`next`](Self::next) by tokens that are certain. They are worth while, whatever the
    /// acceptance of other drafts.
    fn certain(&mut self, tokens: Vec<u32>, origin: DraftOrigin) -> NextDraft {
        let advised = self.advised_for(tokens.len());
        (self.last, self.origin) = (NextDraft { tokens, advised }, Some(origin));
        self.last.clone()
    }

    /// How many tokens may be proposed at once; 0 without a proposer.
    pub(super) fn most_proposed(&self) -> usize {
        self.proposer.as_ref().map_or(0, |(_, proposer)| proposer.most())
    }

    /// What to draft next if the text has a grammar; call it after [`next`](Self::next).
    pub(super) fn by_grammar(&mut self, proposed: Proposed) -> NextDraft {
        let Proposed { tokens, is_forced } = proposed;
        match self.origin {
            Some(DraftOrigin::Thinking) if is_forced => self.last.clone(),
            _ if is_forced => self.certain(tokens, DraftOrigin::Grammar),
            _ => self.cut(tokens.len()),
        }
    }

    /// What was proposed last.
    #[must_use]
    pub fn proposed(&self) -> &[u32] {
        &self.last.tokens
    }

    /// Where these draft tokens came from, if they were proposed here, as far as that is known.
    #[must_use]
    pub fn origin_of(&self, draft: &[u32]) -> Option<DraftOrigin> {
        self.origin.filter(|_| !draft.is_empty() && self.last.tokens.starts_with(draft))
    }

    /// Memory held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let proposer = self.proposer.as_ref().map_or(0, |(_, proposer)| proposer.bytes());
        // The record of outcomes counts as its fixed bound.
        size_of::<Self>() + proposer + self.last.tokens.capacity() * size_of::<u32>() + Acceptance::MAX_BYTES
    }

    /// The most memory held once `more` tokens are emitted.
    #[must_use]
    pub fn bytes_after(&self, more: usize) -> usize {
        let proposer = self.proposer.as_ref().map_or(0, |(_, proposer)| proposer.bytes_after(more));
        let proposed = self.last.tokens.capacity().max(MAX_DRAFT_TOKENS as usize) * size_of::<u32>();
        size_of::<Self>() + proposer + proposed + Acceptance::MAX_BYTES
    }
}

impl Sequence {
    /// The same, for a text of at most `most` tokens, prompt included.
    #[must_use]
    pub fn within(mut self, most: usize) -> Self {
        if let Some(speculation) = &mut self.speculation {
            speculation.most_tokens = most as u64;
        }
        self
    }

    /// How many draft tokens could be of use. The last token of a text needs no draft token, and a verification that
    /// could reach beyond the longest text is refused.
    fn most_drafted(&self) -> usize {
        let most = self.speculation.as_ref().map_or(0, |speculation| speculation.most_tokens);
        let room = most.saturating_sub(self.history_len()).max(1);
        self.remaining().min(usize::try_from(room).unwrap_or(usize::MAX)) - 1
    }

    /// How many draft tokens were advised last, if advice was asked for.
    #[must_use]
    pub fn advised(&self) -> Option<u32> {
        self.speculation.as_ref()?.last.advised
    }

    /// Records the outcome of a draft, with no trials if there was none, and says what to draft next: what the thinking
    /// budget forces, or what the proposer found, as far as nothing else is forced in its place.
    pub fn next_draft(&mut self, trials: &[Trial]) -> NextDraft {
        let most = self.most_drafted();
        let Some(speculation) = self.speculation.as_mut().filter(|_| self.finished.is_none()) else {
            return NextDraft::default();
        };
        speculation.record(trials);
        let next = speculation.next(most);
        let most = most.min(speculation.most_proposed());
        // Tokens that are forced only behind the draft do not matter.
        if !self.history.here().may_force_within(&self.rules, most.min(next.tokens.len().max(1))) {
            return next;
        }
        let forced = self.forced(most);
        let kept = if forced.is_empty() { self.until_forced(&next.tokens) } else { 0 };
        match &mut self.speculation {
            Some(speculation) if forced.is_empty() => speculation.cut(kept),
            Some(speculation) => speculation.certain(forced, DraftOrigin::Thinking),
            None => next,
        }
    }

    /// The tokens that are forced from here on, at most `most`.
    fn forced(&self, most: usize) -> Vec<u32> {
        let (mut ahead, mut tokens) = (self.ahead(), Vec::new());
        while let Some(&token) = ahead.here(&self.history).forced().first().filter(|_| tokens.len() < most) {
            tokens.push(token);
            if self.grow(&mut ahead, token).is_some() {
                break;
            }
        }
        tokens
    }

    /// How many of these draft tokens may come before another token is forced.
    fn until_forced(&self, draft: &[u32]) -> usize {
        let mut ahead = self.ahead();
        let may_come = |&&token: &&u32| {
            let may_come = ahead.here(&self.history).forced().first().is_none_or(|&forced| forced == token);
            self.grow(&mut ahead, token);
            may_come
        };
        draft.iter().take_while(may_come).count()
    }

    /// What the grammar needs to propose a draft, if the sequence has a grammar and asks for drafts.
    #[must_use]
    pub fn draft_by_grammar(&self) -> Option<ToDraft<'_>> {
        let (text, speculation) = (self.text()?, self.speculation.as_deref()?);
        let most = speculation.most_proposed().min(self.most_drafted());
        (most > 0 && self.finished.is_none()).then(|| ToDraft { text, own: speculation.proposed().to_vec(), most })
    }

    /// Takes the grammar's answer to what was proposed, and says what to draft next. Tokens that a budget forces come
    /// before those of the grammar.
    pub fn drafts_by_grammar(&mut self, mut proposed: Proposed) -> NextDraft {
        if proposed.is_forced && self.history.here().may_force_within(&self.rules, proposed.tokens.len()) {
            proposed.tokens.truncate(self.until_forced(&proposed.tokens));
        }
        self.speculation.as_mut().map(|speculation| speculation.by_grammar(proposed)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
