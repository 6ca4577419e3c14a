//! Spells bytes with the tokens that a BPE tokenizer would most likely make of them.

use std::collections::HashMap;
use toktrie::TokTrie;

/// The ids of tokens by their texts.
#[derive(Debug, Default)]
pub(super) struct Spelling(HashMap<Box<[u8]>, u32>);

impl Spelling {
    /// From the texts of tokens by id; tokens without a text have an empty one. Of equal texts the first counts.
    pub(super) fn new(words: &[Vec<u8>]) -> Self {
        let mut ids = HashMap::with_capacity(words.len());
        for (id, word) in (0..).zip(words) {
            if !word.is_empty() && word[0] != TokTrie::SPECIAL_TOKEN_MARKER {
                ids.entry(word.clone().into_boxed_slice()).or_insert(id);
            }
        }
        Self(ids)
    }

    /// The token whose text is one byte.
    pub(super) fn byte(&self, byte: u8) -> Option<u32> {
        self.id(&[byte])
    }

    fn id(&self, text: &[u8]) -> Option<u32> {
        self.0.get(text).copied()
    }

    /// Tokens whose texts are together these bytes, each of which must be a token's text. It begins with single bytes
    /// and, as long as possible, merges the two neighbours that make the token with the lowest id. A BPE tokenizer
    /// numbers tokens in the order in which it merges. It also cuts the text into words first, but hardly any token
    /// crosses the ends of words.
    pub(super) fn of(&self, bytes: &[u8]) -> Vec<u32> {
        // The beginnings of the tokens, and the end of the last one.
        let mut cuts: Vec<usize> = (0..=bytes.len()).collect();
        let merged = |cuts: &[usize], at: usize| self.id(&bytes[cuts[at]..*cuts.get(at + 2)?]);
        let mut ids: Vec<Option<u32>> = (0..bytes.len()).map(|at| merged(&cuts, at)).collect();
        while let Some((_, at)) = ids.iter().zip(0..).filter_map(|(id, at)| Some(((*id)?, at))).min() {
            cuts.remove(at + 1);
            ids.remove(at + 1);
            ids[at] = merged(&cuts, at);
            if let Some(before) = at.checked_sub(1) {
                ids[before] = merged(&cuts, before);
            }
        }
        cuts.windows(2).filter_map(|ends| self.id(&bytes[ends[0]..ends[1]])).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_of_the_lowest_id_is_merged_first() {
        let words: Vec<Vec<u8>> = ["a", "b", "c", "", "ab", "bc", "abc", "\u{ff}", "ca", "ab", "cab"]
            .map(|word| word.as_bytes().to_vec())
            .into();
        let spelling = Spelling::new(&words);
        let texts = |bytes: &str| -> Vec<&str> {
            let texts = spelling.of(bytes.as_bytes()).into_iter().map(|id| words[id as usize].as_slice());
            texts.map(|text| std::str::from_utf8(text).expect("ASCII")).collect()
        };
        assert_eq!(texts("abc"), ["abc"]);
        assert_eq!(texts("abca"), ["abc", "a"], "not a, bc, a and not ab, ca");
        assert_eq!(texts("bcab"), ["bc", "ab"], "ab before bc, bc before cab");
        assert_eq!(texts("cab"), ["cab"]);
        assert_eq!(texts("c"), ["c"]);
        assert!(texts("").is_empty());
        assert_eq!((spelling.byte(b'a'), spelling.byte(b'x')), (Some(0), None));
        assert_eq!(spelling.id(b"ab"), Some(4), "the first of two");
    }
}
