//! Where a text stands in its grammar's automaton, and which tokens may come there.

mod along;
mod extent;
mod forced;
mod making;
mod spent;

use super::begins::Before;
use super::compile::MASK_FUEL;
use super::mask_error::MaskError;
use super::message::told;
use super::text::Place;
use super::{Grammar, lock};
use bytes::Bytes;
use extent::Extent;
use llguidance::api::StopReason;
use llguidance::toktrie::SimpleVob;
use llguidance::{CancellationHandle, Cancelled, TokenParser};
use making::Making;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The tokens that may come at one place; `None` means all.
pub type Mask = Option<Bytes>;

/// How many bytes the automaton of one text may take.
const MAX_BYTES: usize = 64 << 20;
/// How many bytes its lexer takes besides those that it reports: for each terminal; for each state; and how many
/// terminals take one more byte in each state. Measured, including what growing by doubling leaves unused.
const BYTES_PER_TERMINAL: usize = 240;
const BYTES_PER_STATE: usize = 128;
const TERMINALS_PER_BYTE: usize = 7;

pub(super) struct State {
    parser: TokenParser,
    phase: Phase,
    /// The mask after all that it has read, once it is computed.
    mask: Option<Mask>,
    /// Draft tokens that may follow, and the masks before them and after each, once they are computed.
    ahead: Option<(Vec<u32>, Vec<Mask>)>,
    /// Why there will be no masks any more.
    failed: Option<MaskError>,
    /// How much the automaton has read.
    read: Extent,
    /// The most that it ever had read, including what was read ahead. It keeps the memory for that.
    most_read: Extent,
    /// How much fuel its lexer had spent when it last got new fuel, for a mask; `None` if it never did.
    refuelled: Option<usize>,
    /// The tokens that the automaton has consumed.
    consumed: Vec<u32>,
    /// Whether looking ahead has hit a limit once, so that it is not done any more.
    is_cautious: bool,
}

/// A clone gets an automaton of its own.
impl Clone for State {
    fn clone(&self) -> Self {
        let (parser, mask, failed) = (self.parser.deep_clone(), self.mask.clone(), self.failed.clone());
        let (ahead, consumed) = (self.ahead.clone(), self.consumed.clone());
        let Self { phase, read, most_read, refuelled, is_cautious, .. } = *self;
        Self { parser, phase, mask, ahead, failed, read, most_read, refuelled, consumed, is_cautious }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The grammar has not begun.
    Before(Before),
    Inside,
    /// A token has ended the text. Only tokens that end it may follow.
    Ended,
}

/// Runs work on a grammar. A panic in it becomes this text's fault and affects no other text.
pub(super) fn guarded<T>(work: impl FnOnce() -> anyhow::Result<T>) -> Result<T, MaskError> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) if error.is::<Cancelled>() => Err(MaskError::too_long()),
        Ok(Err(error)) => match error.downcast::<MaskError>() {
            Ok(mask_error) => Err(mask_error),
            Err(error) => Err(MaskError::TooComplex(told(&error))),
        },
        Err(_) => Err(MaskError::Fault("the grammar's automaton failed on this text".to_owned())),
    }
}

impl State {
    /// The state at the beginning of a text.
    pub(super) fn new(parser: TokenParser, phase: Phase) -> Self {
        let (mask, ahead, failed, refuelled) = (None, None, None, None);
        let (read, most_read, consumed, is_cautious) = (Extent::default(), Extent::default(), Vec::new(), false);
        Self { parser, phase, mask, ahead, failed, read, most_read, refuelled, consumed, is_cautious }
    }

    /// How many bytes it takes.
    pub(super) fn bytes(&self) -> usize {
        // Guarded, because a panic may have left the lexer locked for good.
        let lexer = catch_unwind(AssertUnwindSafe(|| self.of_lexer())).unwrap_or(0);
        lexer + self.most_read.memory()
    }

    fn of_lexer(&self) -> usize {
        let (stats, terminals) =
            (self.parser.parser.lexer_stats(), self.parser.parser.grammar().lexer_spec().lexemes.len());
        let of_states = stats.num_states * (BYTES_PER_STATE + terminals / TERMINALS_PER_BYTE);
        stats.num_bytes + terminals * BYTES_PER_TERMINAL + of_states
    }

    /// The handle that cancels all work on it.
    pub(super) fn cancellation(&mut self) -> CancellationHandle {
        self.parser.enable_cancellation()
    }

    /// Reads the emitted tokens that were not read yet.
    fn read_all(&mut self, place: &Place) -> Result<(), MaskError> {
        if let Some(problem) = &self.failed {
            return Err(problem.clone());
        }
        let unread = std::mem::take(&mut *lock(&place.unread));
        if !unread.is_empty() {
            (self.mask, self.ahead) = (None, None);
        }
        let read = guarded(|| {
            for token in unread {
                let wrong =
                    || MaskError::Fault(format!("token {token} was emitted, but the grammar does not allow it"));
                anyhow::ensure!(self.read(&place.grammar, token)?, wrong());
            }
            Ok(())
        });
        read.map_err(|problem| self.fail(problem))
    }

    /// The mask after the emitted tokens.
    pub(super) fn next(&mut self, place: &Place) -> Result<Mask, MaskError> {
        self.read_all(place)?;
        if let Some(mask) = &self.mask {
            return Ok(mask.clone());
        }
        match guarded(|| self.here(place)) {
            Ok(_) if self.bytes() > MAX_BYTES => Err(self.fail(MaskError::too_large(MAX_BYTES))),
            Ok(mask) => Ok(self.mask.insert(mask).clone()),
            Err(problem) => Err(self.fail(problem)),
        }
    }

    fn fail(&mut self, problem: MaskError) -> MaskError {
        (self.mask, self.ahead) = (None, None);
        self.failed = Some(problem.clone());
        problem
    }

    /// Reads a token, and returns whether the grammar allows it.
    pub(super) fn read(&mut self, grammar: &Grammar, token: u32) -> anyhow::Result<bool> {
        let mut is_end = grammar.ends.contains(&token);
        let is_allowed = match self.phase {
            Phase::Before(before) => {
                self.phase = grammar.begins.next(before, token).map_or(Phase::Inside, Phase::Before);
                // Before a start position nothing ends the text.
                is_end &= !matches!(before, Before::Tokens(_));
                true
            }
            // A token that ends the text is not part of it, even if it has a text of its own.
            Phase::Inside if is_end => self.may_end(),
            Phase::Inside => token < grammar.compiled.tokens.end && self.go_on(token)?,
            Phase::Ended => is_end,
        };
        if is_end && is_allowed {
            self.phase = Phase::Ended;
        }
        Ok(is_allowed)
    }

    fn go_on(&mut self, token: u32) -> anyhow::Result<bool> {
        if !self.parser.validate_token(token)? {
            // It also says no if it fails to decide.
            return match self.parser.parser.get_error() {
                Some(error) => Err(anyhow::anyhow!("{}", error.message())),
                None => Ok(false),
            };
        }
        self.refuel()?;
        let items = self.parser.parser.stats().all_items;
        self.parser.consume_token(token)?;
        self.consumed.push(token);
        self.read.items += self.parser.parser.stats().all_items - items;
        self.read.bytes += self.parser.token_env.tok_trie().token_len(token);
        self.count_room(self.read);
        self.parser.check_stop()?;
        Ok(true)
    }

    /// Gets new fuel if little may be left. Only computing a mask brings fuel, and a text that was opened again has
    /// none computed.
    fn refuel(&mut self) -> anyhow::Result<()> {
        let fuel = self.parser.parser.lexer_stats().total_fuel_spent;
        if self.refuelled.is_none_or(|before| fuel.saturating_sub(before) > MASK_FUEL / 2) {
            self.masked()?;
        }
        Ok(())
    }

    fn masked(&mut self) -> anyhow::Result<SimpleVob> {
        let before = self.parser.parser.lexer_stats().total_fuel_spent;
        // A cached mask would bring no fuel.
        self.parser.invalidate_bias_cache();
        let mask = self.parser.compute_mask()?;
        self.refuelled = Some(before);
        Ok(mask)
    }

    fn count_room(&mut self, read: Extent) {
        self.most_read = self.most_read.max(read);
    }

    fn may_end(&mut self) -> bool {
        match self.parser.stop_reason() {
            StopReason::NotStopped => self.parser.is_accepting(),
            // Nothing can follow here, but the text may not end either.
            StopReason::NoExtensionBias => false,
            _ => true,
        }
    }

    /// The mask where the text stands.
    fn here(&mut self, place: &Place) -> anyhow::Result<Mask> {
        let (grammar, vocab_size) = (&place.grammar, place.vocab_size);
        let mut made = match self.phase {
            Phase::Before(_) => return Ok(None),
            Phase::Ended => Making::none(vocab_size),
            Phase::Inside => self.inside(grammar, vocab_size)?,
        };
        let may_end = self.phase == Phase::Ended || made.may_end;
        grammar.ends.iter().for_each(|&token| made.set(token, may_end));
        Ok(Some(made.bytes.into()))
    }

    fn inside(&mut self, grammar: &Grammar, vocab_size: usize) -> anyhow::Result<Making> {
        if self.parser.stop_reason() != StopReason::NotStopped {
            return Ok(Making { may_end: self.may_end(), ..Making::none(vocab_size) });
        }
        match self.masked() {
            // The mask may allow the id of all ends for another reason, such as a range of token ids, so whether the
            // text may end is asked separately.
            Ok(mask) => {
                let may_end = self.may_end();
                Ok(Making::of(mask.as_slice(), grammar.compiled.tokens.end, vocab_size, may_end))
            }
            // No token's text fits: the mask is empty, and the row reports that all tokens are masked.
            Err(_) if self.parser.stop_reason() == StopReason::NoExtensionBias => Ok(Making::none(vocab_size)),
            Err(error) => Err(error),
        }
    }
}
