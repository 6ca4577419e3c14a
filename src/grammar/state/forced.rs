//! Finds what a grammar forces: the bytes that have to come next, and the tokens that spell them.

use super::super::propose::Proposed;
use super::extent::Extent;
use super::spent::Spent;
use super::{MaskError, Phase, Place, State};
use crate::grammar::compile::{MASK_FUEL, PLACE_ITEMS};
use llguidance::api::StopReason;
use llguidance::derivre::NextByte;
use llguidance::earley::ParserRecognizer;
use toktrie::{Recognizer, TokTrie};

/// How many bytes are looked at for each wanted token, and how many more for a token that may be cut.
const BYTES_PER_TOKEN: usize = 8;
const MORE_BYTES: usize = 64;
/// How many bytes of a draft are looked at between two checks of what that has taken.
const AT_ONCE: usize = 16;

impl State {
    /// The longer of two drafts after the emitted tokens: `own`, as far as the grammar allows it, and what the grammar
    /// forces, at most `most` tokens.
    pub(in crate::grammar) fn propose(
        &mut self,
        place: &Place,
        own: &[u32],
        most: usize,
    ) -> Result<Proposed, MaskError> {
        self.read_all(place)?;
        match self.phase {
            Phase::Before(before) => {
                // What follows the grammar's beginning is not looked at.
                let tokens = own[..place.grammar.begins.within(before, own)].to_vec();
                Ok(Proposed { tokens, is_forced: false })
            }
            Phase::Ended => Ok(Proposed::default()),
            Phase::Inside => {
                let found = self.unasked(place, |state| {
                    state.refuel()?;
                    let allowed = state.allowed(place, own)?;
                    let forced = state.forced(place, most)?;
                    let is_forced = forced.len() > allowed;
                    Ok(Proposed { tokens: if is_forced { forced } else { own[..allowed].to_vec() }, is_forced })
                });
                found.map(|found| found.unwrap_or_else(|| Proposed::unchecked(own)))
            }
        }
    }

    /// How many of these tokens in a row the grammar allows, up to one that would end the text, as far as little work
    /// can tell.
    fn allowed(&mut self, place: &Place, tokens: &[u32]) -> anyhow::Result<usize> {
        let texts = tokens.iter().take_while(|token| place.is_text(**token)).count();
        let (before, mut allowed) = (Spent::of(self), 0);
        while allowed < texts && self.has_room(before) {
            let (mut end, mut bytes) = (allowed, 0);
            while end < texts && bytes < AT_ONCE {
                bytes += self.parser.token_env.tok_trie().token_len(tokens[end]);
                end += 1;
            }
            allowed = self.parser.validate_tokens_raw(&tokens[..end])?;
            if let Some(error) = self.parser.parser.get_error() {
                anyhow::bail!("{}", error.message());
            }
            if allowed < end {
                break;
            }
        }
        Ok(allowed)
    }

    /// Whether it may look further ahead without computing a mask.
    fn has_room(&self, before: Spent) -> bool {
        let now = Spent::of(self);
        now.is_little(before) && self.refuelled.is_some_and(|fuel| now.fuel.saturating_sub(fuel) < MASK_FUEL / 2)
    }

    /// Reads byte by byte as long as only one byte can come, then steps back.
    fn forced(&mut self, place: &Place, most: usize) -> anyhow::Result<Vec<u32>> {
        let compiled = &place.grammar.compiled;
        if compiled.is_one_way || self.parser.stop_reason() != StopReason::NotStopped {
            return Ok(Vec::new());
        }
        let spelling = &compiled.tokens.spelling;
        let (before, mut bytes) = (Spent::of(self), Vec::new());
        let mut items = before.items;
        while bytes.len() < most * BYTES_PER_TOKEN + MORE_BYTES && self.has_room(before) && !self.parser.is_accepting()
        {
            let grown = self.parser.parser.stats().all_items - items;
            items += grown;
            if grown > PLACE_ITEMS / 4 {
                break;
            }
            let Some(byte) = self.parser.parser.with_recognizer(only_byte) else { break };
            let Some(token) = spelling.byte(byte) else { break };
            self.parser.consume_token(token)?;
            self.consumed.push(token);
            bytes.push(byte);
        }
        if bytes.is_empty() {
            return Ok(Vec::new());
        }
        let read = Extent { bytes: self.read.bytes + bytes.len(), items: self.read.items + items - before.items };
        self.count_room(read);
        let mut tokens = spelling.of(&bytes);
        // The last bytes may be part of a longer token with what follows them, so such tokens are cut.
        let trie = self.parser.token_env.tok_trie();
        let (open, _) = self.parser.parser.with_recognizer(|recognizer| trie.chop_tokens(recognizer, &tokens));
        self.parser.rollback(bytes.len())?;
        self.consumed.truncate(self.consumed.len() - bytes.len());
        // The reason is in `go_to`.
        self.parser.invalidate_bias_cache();
        tokens.truncate((tokens.len() - open).min(most));
        let texts = tokens.iter().take_while(|token| place.is_text(**token)).count();
        tokens.truncate(texts);
        Ok(tokens)
    }
}

/// The only byte that can come next, if there is only one. The text must not be able to end here.
fn only_byte(recognizer: &mut ParserRecognizer<'_>) -> Option<u8> {
    let state = recognizer.lexer_state();
    let hint = recognizer.lexer_mut().next_byte(state);
    if let NextByte::ForcedByte(byte) = hint {
        return Some(byte).filter(|byte| *byte != TokTrie::SPECIAL_TOKEN_MARKER);
    }
    // If two bytes can come, they are mostly among the first that are tried.
    let first = hint.some_bytes().first().copied().unwrap_or(b' ');
    recognizer.trie_started("only_byte");
    let mut may_come = (0..=u8::MAX).map(|byte| first.wrapping_add(byte)).filter(|byte| {
        let may_come = recognizer.try_push_byte(*byte);
        if may_come {
            recognizer.pop_bytes(1);
        }
        may_come
    });
    let found = may_come.next().filter(|_| may_come.next().is_none());
    recognizer.trie_finished();
    // The marker is followed by a token without a text.
    found.filter(|byte| *byte != TokTrie::SPECIAL_TOKEN_MARKER)
}
