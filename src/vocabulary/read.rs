//! Reads texts from a file: a `tokenizer.json` of Hugging Face, or a plain list.

use super::{Vocabulary, tokenizer};
use crate::files;
use crate::params::MAX_VOCAB_SIZE;
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::path::Path;

/// Larger files are refused. Those of the largest vocabularies have 20 to 35 MB.
const LARGEST: u64 = 64 << 20;

impl Vocabulary {
    /// Reads a file.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn read(path: &Path) -> Result<Self, String> {
        let named = |problem: String| format!("{}: {problem}", path.display());
        files::read(path, LARGEST).and_then(|bytes| Self::parse(&bytes)).map_err(named)
    }

    /// Reads the bytes of a file: a `tokenizer.json`, or an array of texts by token id, with null for a token without a
    /// text.
    ///
    /// # Errors
    /// What is wrong with them, and where.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let (texts, special) = match bytes.iter().find(|byte| !byte.is_ascii_whitespace()) {
            Some(b'{') => tokenizer::texts(bytes)?,
            Some(b'[') => (json::<List>(bytes)?.0, Vec::new()),
            _ => return Err("is neither a tokenizer.json nor a JSON array of texts".to_owned()),
        };
        if texts.iter().all(Option::is_none) {
            return Err("has no token with a text".to_owned());
        }
        Ok(Self::new(&texts, bytes).with_special(special))
    }
}

/// Parses JSON of a type, or says what is wrong and where.
pub(super) fn json<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(bytes).map_err(|e| e.to_string())
}

/// The error that a vocabulary has too many tokens.
pub(super) fn too_many<E: de::Error>() -> E {
    E::custom(format_args!("more than {MAX_VOCAB_SIZE} tokens"))
}

/// Texts by token id.
struct List(Vec<Option<Vec<u8>>>);

impl<'de> Deserialize<'de> for List {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ListVisitor)
    }
}

struct ListVisitor;

impl<'de> Visitor<'de> for ListVisitor {
    type Value = List;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of texts")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<List, A::Error> {
        let mut texts = Vec::new();
        while let Some(text) = list.next_element::<Option<String>>()? {
            if texts.len() == MAX_VOCAB_SIZE as usize {
                return Err(too_many());
            }
            texts.push(text.map(String::into_bytes));
        }
        Ok(List(texts))
    }
}
