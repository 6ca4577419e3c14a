//! The state of one sequence: a pure state machine that says what to ask of the next row ([`Sequence::spec`]) and takes
//! the token that the row gave ([`Sequence::commit`]).
//!
//! State is a function of parameters, seed and tokens, so opening a sequence with the tokens so far continues it bit
//! for bit. No clock, no threads, no wire. Read [`rules`] (what never changes), [`history`] (what a token changes),
//! [`memory`] (tools that look back, one file each), [`drafts`] (draft tokens that wait to be verified) and
//! [`speculation`] (what to draft next), then [`table`].

// Tokens may not depend on functions that differ from platform to platform: clippy.toml lists them.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod acceptance_tally;
mod bias;
mod chain;
pub mod drafts;
mod dry;
pub mod history;
mod length;
mod loops;
mod memory;
mod ngram;
mod opening;
mod patterns;
mod repeat_index;
pub mod repeated;
mod repeats;
pub mod rules;
pub mod speculation;
pub mod table;
mod text;
mod text_end;
mod thinking;
mod watermark;
mod window;

use crate::grammar::{Flow, GrammarText};
use crate::params::acceptance::AcceptanceRule;
use crate::params::state::SamplerState;
use crate::params::{FieldError, LogprobsParams, MAX_DRAFT_TOKENS};
use crate::sampling::kept::Kept;
use crate::sampling::observed::{Observed, learned};
use crate::sampling::philox::{self, Purpose};
use crate::sampling::row::{Action, RowSpec};
use crate::speculative::numbers::Numbers;
use crate::speculative::verified::TokenOrigin;
use acceptance_tally::AcceptanceTally;
use drafts::Drafts;
use history::{History, HistoryAhead};
pub use opening::OpenError;
use repeated::EarlierRows;
use rules::Rules;
use speculation::Speculation;
use std::sync::Arc;
pub use text_end::FinishReason;

/// One growing text with its own parameters.
#[derive(Debug, Clone)]
pub struct Sequence {
    rules: Arc<Rules>,
    seed: u64,
    history: History,
    /// `None` if there are none.
    drafts: Option<Box<Drafts>>,
    speculation: Option<Box<Speculation>>,
    finished: Option<FinishReason>,
    rare: Option<Box<RareState>>,
    /// Where its last token came from.
    last_token_origin: TokenOrigin,
    acceptance: AcceptanceTally,
    earlier_rows: EarlierRows,
}

/// What only few sequences have.
#[derive(Debug, Clone, Default)]
struct RareState {
    /// What its samplers remember.
    state: Option<SamplerState>,
    /// Where the text stands in the grammar that it has to match.
    text: Option<GrammarText>,
}

impl Sequence {
    /// A sequence with this prompt that has emitted `output` so far.
    #[must_use]
    pub fn open(rules: Arc<Rules>, seed: u64, prompt: &[u32], output: &[u32]) -> Self {
        Self::predicted(rules, seed, prompt, output, &[])
    }

    /// The same. Proposers look in `predicted` too, which is what the output may repeat.
    #[must_use]
    pub fn predicted(rules: Arc<Rules>, seed: u64, prompt: &[u32], output: &[u32], predicted: &[u32]) -> Self {
        let history = History::new(&rules, prompt, output);
        let finished = output.last().and_then(|&last| rules.finish(last, history.here()));
        let speculation = rules.speculation(prompt, output, predicted);
        let state = Some(SamplerState::new(rules.params())).filter(|state| !state.is_empty());
        let rare = state.map(|state| Box::new(RareState { state: Some(state), text: None }));
        Self {
            rules,
            seed,
            history,
            drafts: None,
            speculation,
            finished,
            rare,
            last_token_origin: TokenOrigin::default(),
            acceptance: AcceptanceTally::default(),
            earlier_rows: EarlierRows::behind(prompt, output),
        }
    }

    /// The same, with its place in its grammar, if it has one, as a text of this flow. Rows have `vocab_size` tokens;
    /// `output` is what the sequence has emitted.
    ///
    /// # Errors
    /// At `output_token_ids`, if the grammar does not allow them.
    pub fn with_grammar_text(
        mut self,
        flow: &Arc<Flow>,
        vocab_size: usize,
        output: &[u32],
    ) -> Result<Self, FieldError> {
        if let Some(grammar) = self.rules.grammar() {
            let text = GrammarText::open(Arc::clone(grammar), flow, vocab_size, output)?;
            self.rare.get_or_insert_default().text = Some(text);
        }
        Ok(self)
    }

    /// Where it stands in its grammar, if it has one.
    #[must_use]
    pub fn text(&self) -> Option<&GrammarText> {
        self.rare.as_ref()?.text.as_ref()
    }

    /// The same, with what its samplers remembered before it was opened again.
    ///
    /// # Errors
    /// The field at fault, of the wire's `SamplerState`.
    pub fn with_sampler_state(mut self, state: SamplerState) -> Result<Self, FieldError> {
        let state = state.over_new(self.rules.params())?;
        self.remember(state);
        Ok(self)
    }

    /// Where its last token came from, for metrics.
    #[must_use]
    pub fn last_token_origin(&self) -> TokenOrigin {
        self.last_token_origin
    }

    /// Sets where its last token came from.
    pub fn set_last_token_origin(&mut self, origin: TokenOrigin) {
        self.last_token_origin = origin;
    }

    /// What its samplers remember, if they have state.
    #[must_use]
    pub fn state(&self) -> Option<SamplerState> {
        self.rare.as_ref()?.state
    }

    /// The same, if it has to be returned with each token.
    #[must_use]
    pub fn returned_state(&self) -> Option<SamplerState> {
        self.state().filter(|_| self.rules.params().samplers.return_sampler_state)
    }

    /// What its samplers would remember after this token, starting from `state` or, without it, from their own state.
    #[must_use]
    pub fn learned(&self, state: Option<SamplerState>, token: Option<Observed>) -> Option<SamplerState> {
        let (state, token, steps) = (state.or(self.state())?, token?, self.rules.steps()?);
        Some(learned(state, steps, token))
    }

    /// Replaces what its samplers remember. Call it before the token is committed that they learnt this from.
    pub fn remember(&mut self, state: SamplerState) {
        if let Some(own) = self.rare.as_mut().and_then(|rare| rare.state.as_mut()) {
            *own = state;
        }
    }

    /// What to ask of the next row.
    #[must_use]
    pub fn spec(&self, action: Action) -> RowSpec<'_> {
        self.rules.spec(self.seed, self.history.here(), action).remembering(self.state())
    }

    /// What to ask of the row at `ahead`, which grew from this sequence. Samplers keep the state that they have now.
    #[must_use]
    pub fn spec_ahead<'a>(&'a self, ahead: &'a HistoryAhead, action: Action) -> RowSpec<'a> {
        self.rules.spec(self.seed, ahead.here(&self.history), action).remembering(self.state())
    }

    /// The draw of the token at the current position.
    #[must_use]
    pub fn draw(&self, purpose: Purpose) -> Action {
        Action::Draw { uniform: philox::uniform(self.seed, self.position(), purpose) }
    }

    /// The sequence as seen by rows whose earlier tokens are known or proposed but not emitted. [`grow`](Self::grow)
    /// extends it and leaves the sequence as it is.
    #[must_use]
    pub fn ahead(&self) -> HistoryAhead {
        self.history.ahead()
    }

    /// Adds a token to what [`ahead`](Self::ahead) began, and says why the sequence would end with it, if it would.
    pub fn grow(&self, ahead: &mut HistoryAhead, token: u32) -> Option<FinishReason> {
        ahead.push(&self.rules, &self.history, token);
        self.rules.finish(token, ahead.here(&self.history))
    }

    /// Whether the text thinks, by the beginning and end that `thinking_budget` gives: here, or at what
    /// [grew](Self::grow) from here.
    #[must_use]
    pub fn thinks(&self, ahead: Option<&HistoryAhead>) -> bool {
        ahead.map_or(self.history.here(), |ahead| ahead.here(&self.history)).thinks()
    }

    /// The random numbers of a draft that starts at the current position.
    #[must_use]
    pub fn numbers(&self) -> Numbers {
        Numbers { seed: self.seed, start: self.position() }
    }

    /// How its draft tokens are accepted.
    #[must_use]
    pub fn acceptance(&self) -> AcceptanceRule {
        self.rules.acceptance()
    }

    /// Draft tokens that wait to be verified.
    #[must_use]
    pub fn drafts(&self) -> &Drafts {
        static NONE: Drafts = Drafts::none();
        self.drafts.as_deref().unwrap_or(&NONE)
    }

    /// Keeps a draft token that was drawn after draft token `parent`, or after the last token. `state` is what samplers
    /// would remember after it.
    pub fn keep_draft(&mut self, parent: Option<usize>, token: u32, kept: Box<Kept>, state: Option<SamplerState>) {
        self.drafts.get_or_insert_default().push(parent, token, kept, state);
    }

    /// The most bytes that a draft row of so many logits keeps. It keeps the row or a part of it, in f32 if the row's
    /// own format cannot hold the penalised logits; or, after a chain of samplers, a list of what the chain left.
    #[must_use]
    pub fn most_kept_bytes(&self, vocab_size: usize) -> usize {
        let bytes = |left: Option<usize>| match left {
            Some(tokens) => tokens * size_of::<(u32, u64)>() + self.own_bytes(),
            None => vocab_size * size_of::<f32>(),
        };
        self.rules.most_left(vocab_size).map(bytes).max().unwrap_or(0)
    }

    /// Forgets all draft tokens.
    pub fn forget_drafts(&mut self) {
        self.drafts = None;
    }

    /// Appends an emitted token, and says why the sequence ends with it, if it does. Draft tokens are forgotten,
    /// because they were proposed for the position that the token takes.
    pub fn commit(&mut self, token: u32) -> Option<FinishReason> {
        self.drafts = None;
        if let Some(speculation) = &mut self.speculation {
            speculation.push(token);
        }
        if let Some(text) = self.rare.as_mut().and_then(|rare| rare.text.as_mut()) {
            text.push(token);
        }
        self.history.push(&self.rules, token);
        self.finished = self.rules.finish(token, self.history.here());
        self.finished
    }

    /// Whether it asks why tokens were not chosen, which makes its rows slow.
    #[must_use]
    pub fn explains(&self) -> bool {
        self.rules.explains()
    }

    /// The most bytes of the lists that are reported for each of its tokens. `logprobs` replaces its own setting when
    /// tokens are scored.
    #[must_use]
    pub fn most_reported_bytes(&self, logprobs: Option<&LogprobsParams>) -> usize {
        self.rules.most_reported_bytes(logprobs)
    }

    /// The most bytes of the tokens that are proposed to it.
    #[must_use]
    pub fn most_proposed_bytes(&self) -> usize {
        self.speculation.as_ref().map_or(0, |_| MAX_DRAFT_TOKENS as usize * size_of::<u32>())
    }

    /// How many more tokens it may emit before it has its maximum length; at least 1.
    #[must_use]
    pub fn remaining(&self) -> usize {
        let max = self.rules.max_tokens();
        if max == 0 { usize::MAX } else { max.saturating_sub(self.position()).max(1) as usize }
    }

    /// Lets other threads compute the masks of its next rows, if it has a grammar and goes on.
    pub fn work_ahead(&mut self) {
        let draft = self.speculation.as_deref().map_or(&[][..], Speculation::proposed);
        if let Some(text) = self.rare.as_mut().and_then(|rare| rare.text.as_mut()).filter(|_| self.finished.is_none()) {
            text.work_ahead(draft);
        }
    }

    /// What it remembers to propose draft tokens, if its parameters ask for that.
    #[must_use]
    pub fn speculation(&self) -> Option<&Speculation> {
        self.speculation.as_deref()
    }

    /// How many entries of biases, bans and penalties its next row has.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.rules.entries(self.history.here())
    }

    /// Why it ended, if it has.
    #[must_use]
    pub fn finished(&self) -> Option<FinishReason> {
        self.finished
    }

    /// Its memory in bytes, without its rules and its place in a table.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.own_bytes()
            + self.history.bytes()
            + self.drafts_bytes()
            + self.speculation.as_ref().map_or(0, |s| s.bytes())
            + self.text().map_or(0, GrammarText::bytes)
    }

    /// The most bytes it may take once it has emitted `tokens` more.
    #[must_use]
    pub fn bytes_after(&self, tokens: usize) -> usize {
        let speculation = self.speculation.as_ref().map_or(0, |s| s.bytes_after(tokens));
        let draft = self.speculation.as_ref().map_or(0, |s| s.most_proposed());
        let text = self.text().map_or(0, |text| text.bytes_after(tokens, draft));
        self.own_bytes() + self.history.bytes_after(&self.rules, tokens) + self.drafts_bytes() + speculation + text
    }

    fn drafts_bytes(&self) -> usize {
        self.drafts.as_ref().map_or(0, |drafts| size_of::<Drafts>() + drafts.bytes())
    }

    fn own_bytes(&self) -> usize {
        self.rare.as_ref().map_or(0, |_| size_of::<RareState>())
    }

    /// The seed in force.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The number of output tokens, which is the position of the next one.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.history.here().position()
    }

    /// Prompt and output tokens.
    #[must_use]
    pub fn history_len(&self) -> u64 {
        self.history.here().place() - 1
    }
}

/// Sorts the tokens in ascending order and removes duplicates.
fn in_order_once(tokens: &mut Vec<u32>) {
    tokens.sort_unstable();
    tokens.dedup();
}

#[cfg(test)]
mod tests;
