//! The texts of tokens. They tell which token's text is the beginning of another's, and grammars need them too.
//!
//! In the sorted list of all texts, those that begin with a given text are adjacent. So a token is described by its
//! place in the list and by the end of the texts that begin with its own. With the way back, from a place to its token
//! and to the longest text that begins the one there, this takes 16 bytes a token. The text takes 8 more bytes,
//! and its own length.

mod read;
mod tokenizer;

#[cfg(test)]
mod tests;

use ring::digest::{self, SHA256, SHA256_OUTPUT_LEN};

/// The place of a token without a text.
const NO_TEXT: u32 = u32::MAX;

/// The texts of tokens, and which of them begin others.
#[derive(Clone)]
pub struct Vocabulary {
    /// For each token, the place of the first token with the same text, in the sorted list of all texts.
    first: Vec<u32>,
    /// For each token, the place behind the last text that begins with its own.
    behind: Vec<u32>,
    /// The token at each place.
    tokens: Vec<u32>,
    /// For each place, that of the longest other text that begins the one there.
    begun_by: Vec<u32>,
    /// All texts, one after the other, by token.
    texts: Vec<u8>,
    /// For each token, the end of its text in `texts`.
    ends: Vec<usize>,
    /// Control tokens, which have no text, with their names.
    special: Vec<(u32, String)>,
    sha256: [u8; SHA256_OUTPUT_LEN],
}

impl Vocabulary {
    /// From texts by token id, `None` or empty where a token has none. `file` has the bytes of the file that they were
    /// read from.
    #[must_use]
    pub fn new(texts: &[Option<Vec<u8>>], file: &[u8]) -> Self {
        let text = |token: u32| texts[token as usize].as_deref().unwrap_or_default();
        let mut order: Vec<u32> = (0..texts.len() as u32).filter(|&token| !text(token).is_empty()).collect();
        order.sort_unstable_by(|&a, &b| text(a).cmp(text(b)));
        let (mut first, mut behind) = (vec![NO_TEXT; texts.len()], vec![0; texts.len()]);
        // Tokens whose texts begin the current one; each text begins the next.
        let mut open: Vec<u32> = Vec::new();
        let mut begun_by = Vec::with_capacity(order.len());
        for (place, &token) in (0..).zip(&order) {
            while let Some(last) = open.pop_if(|last| !text(token).starts_with(text(*last))) {
                behind[last as usize] = place;
            }
            let equal = open.last().filter(|&&last| text(last) == text(token));
            first[token as usize] = equal.map_or(place, |&last| first[last as usize]);
            let longest = open.last().map(|&last| first[last as usize]);
            begun_by.push(if equal.is_some() { begun_by[place as usize - 1] } else { longest.unwrap_or(NO_TEXT) });
            open.push(token);
        }
        open.into_iter().for_each(|last| behind[last as usize] = order.len() as u32);
        let mut sha256 = [0; SHA256_OUTPUT_LEN];
        sha256.copy_from_slice(digest::digest(&SHA256, file).as_ref());
        let all: Vec<u8> = texts.iter().flatten().flatten().copied().collect();
        let lengths = texts.iter().map(|text| text.as_ref().map_or(0, Vec::len));
        let ends = lengths.scan(0, |end, length| {
            *end += length;
            Some(*end)
        });
        let ends = ends.collect();
        Self { first, behind, tokens: order, begun_by, texts: all, ends, special: Vec::new(), sha256 }
    }

    /// The same, with its control tokens and their names.
    #[must_use]
    pub fn with_special(self, mut special: Vec<(u32, String)>) -> Self {
        special.sort_by_key(|(token, _)| *token);
        Self { special, ..self }
    }

    /// The text of a token; empty if it has none.
    #[must_use]
    pub fn text(&self, token: u32) -> &[u8] {
        let at = token as usize;
        let start = at.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        self.ends.get(at).and_then(|&end| self.texts.get(start..end)).unwrap_or_default()
    }

    /// The text of a token, or the name of a control token; empty if it has neither.
    #[must_use]
    pub fn spelling(&self, token: u32) -> &[u8] {
        match self.text(token) {
            [] => {
                self.special.binary_search_by_key(&token, |(of, _)| *of).map_or(&[], |at| self.special[at].1.as_bytes())
            }
            text => text,
        }
    }

    /// Control tokens, by ascending token, and their names.
    #[must_use]
    pub fn special(&self) -> &[(u32, String)] {
        &self.special
    }

    /// The place of a token's text in the sorted list of all texts, the same for equal texts; `None` if it has none.
    #[must_use]
    pub fn place(&self, token: u32) -> Option<u32> {
        self.first.get(token as usize).copied().filter(|&place| place != NO_TEXT)
    }

    /// The place behind all texts that begin with that of a token; 0 if it has none.
    #[must_use]
    pub fn behind(&self, token: u32) -> u32 {
        self.behind.get(token as usize).copied().unwrap_or(0)
    }

    /// Whether a token's text is the beginning of another's, or equals it.
    #[must_use]
    pub fn begins(&self, token: u32, other: u32) -> bool {
        let (place, behind) = (self.place(token), self.behind(token));
        place.zip(self.place(other)).is_some_and(|(place, other)| (place..behind).contains(&other))
    }

    /// Tokens that have a text, in the order of their texts.
    #[must_use]
    pub fn by_text(&self) -> &[u32] {
        &self.tokens
    }

    /// The place of the longest other text that begins the one at a place.
    #[must_use]
    pub fn beginning(&self, place: u32) -> Option<u32> {
        self.begun_by.get(place as usize).copied().filter(|&place| place != NO_TEXT)
    }

    /// 1 + the largest token id that it knows.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.first.len()
    }

    /// How many tokens have a text.
    #[must_use]
    pub fn texts(&self) -> usize {
        self.tokens.len()
    }

    /// The digest of its file, in hexadecimal digits.
    #[must_use]
    pub fn sha256(&self) -> String {
        self.sha256.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Vocabularies of the same file are equal.
impl PartialEq for Vocabulary {
    fn eq(&self, other: &Self) -> bool {
        self.sha256 == other.sha256
    }
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vocabulary").field("tokens", &self.tokens()).field("sha256", &self.sha256()).finish()
    }
}
