//! What a grammar forces: the bytes that have to come next, and the tokens that spell them.

use super::super::propose::Proposed;
use super::{Phase, Place, State, Trouble, guarded};
use crate::grammar::Grammar;
use llguidance::api::StopReason;
use llguidance::derivre::NextByte;
use llguidance::earley::ParserRecognizer;
use toktrie::{Recognizer, TokTrie};

/// Bytes that are looked at for each token that is wanted.
const BYTES_PER_TOKEN: usize = 8;

impl State {
    /// The longer one of two drafts behind what was emitted: one that somebody has, as far as the grammar allows it, and what the
    /// grammar forces, at most so many tokens.
    pub(in crate::grammar) fn propose(&mut self, place: &Place, own: &[u32], most: usize) -> Result<Proposed, Trouble> {
        self.read_all(place)?;
        let found = guarded(|| match self.phase {
            Phase::Before => Ok(Proposed { tokens: own.to_vec(), is_forced: false }),
            Phase::Ended => Ok(Proposed::default()),
            Phase::Inside => {
                let allowed = self.allowed(&place.grammar, own)?;
                let forced = self.forced(place, most)?;
                let is_forced = forced.len() > allowed;
                Ok(Proposed { tokens: if is_forced { forced } else { own[..allowed].to_vec() }, is_forced })
            }
        });
        found.map_err(|problem| self.fail(problem))
    }

    /// How many of these tokens the grammar allows, one behind the other, up to one that would end the text.
    fn allowed(&mut self, grammar: &Grammar, tokens: &[u32]) -> anyhow::Result<usize> {
        let is_text = |token: &&u32| **token < grammar.compiled.tokens.end && !grammar.ends.contains(token);
        let texts = tokens.iter().take_while(is_text).count();
        let allowed = self.parser.validate_tokens_raw(&tokens[..texts])?;
        match self.parser.parser.get_error() {
            Some(error) => Err(anyhow::anyhow!("{}", error.message())),
            None => Ok(allowed),
        }
    }

    /// Goes on byte by byte while there is one way, and back again.
    fn forced(&mut self, place: &Place, most: usize) -> anyhow::Result<Vec<u32>> {
        let compiled = &place.grammar.compiled;
        if compiled.is_one_way || self.parser.stop_reason() != StopReason::NotStopped {
            return Ok(Vec::new());
        }
        let spelling = &compiled.tokens.spelling;
        let mut bytes = Vec::new();
        while bytes.len() < most * BYTES_PER_TOKEN && !self.parser.is_accepting() {
            let Some(byte) = self.parser.parser.with_recognizer(only_byte) else { break };
            let Some(token) = spelling.byte(byte) else { break };
            self.parser.consume_token(token)?;
            bytes.push(byte);
        }
        if bytes.is_empty() {
            return Ok(Vec::new());
        }
        let mut tokens = spelling.of(&bytes);
        // What follows may be one token with the last bytes.
        let trie = self.parser.token_env.tok_trie();
        let (open, _) = self.parser.parser.with_recognizer(|recognizer| trie.chop_tokens(recognizer, &tokens));
        self.parser.rollback(bytes.len())?;
        // See `go_to`.
        self.parser.invalidate_bias_cache();
        tokens.truncate((tokens.len() - open).min(most));
        let end = tokens.iter().position(|token| place.grammar.ends.contains(token));
        tokens.truncate(end.unwrap_or(tokens.len()));
        Ok(tokens)
    }
}

/// The byte that has to come next, where the text may not end.
fn only_byte(recognizer: &mut ParserRecognizer<'_>) -> Option<u8> {
    let state = recognizer.lexer_state();
    let hint = recognizer.lexer_mut().next_byte(state);
    if let NextByte::ForcedByte(byte) = hint {
        return Some(byte).filter(|byte| *byte != TokTrie::SPECIAL_TOKEN_MARKER);
    }
    // Where there are two ways, they are mostly among the first.
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
    // Behind the marker comes a token that has no text.
    found.filter(|byte| *byte != TokTrie::SPECIAL_TOKEN_MARKER)
}
