//! `tokenizer.json` of Hugging Face's tokenizers: BPE and Unigram.
//!
//! | where | text of a token of `model.vocab` |
//! |---|---|
//! | decoder or pre-tokenizer `ByteLevel` | its characters are bytes in the alphabet of GPT-2; one with another character is what it says |
//! | else | "▁" is a space; with byte fallback `<0x0A>` is that byte |
//!
//! A token of `added_tokens` is what it says, and one that is `special` has no text, as control tokens have none in llama.cpp.

use super::read::{json, too_many};
use crate::params::MAX_VOCAB_SIZE;
use serde::de::{self, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::fmt;

/// The parts of the file that texts are derived from. All others are skipped.
#[derive(Deserialize)]
struct File {
    model: Option<Model>,
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    decoder: Value,
    #[serde(default)]
    pre_tokenizer: Value,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type")]
    kind: Option<String>,
    vocab: Entries,
    #[serde(default)]
    byte_fallback: bool,
}

#[derive(Deserialize)]
struct Added {
    #[serde(deserialize_with = "id")]
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
}

/// How a vocabulary writes its texts.
#[derive(Clone, Copy)]
enum Writing {
    /// In the alphabet of GPT-2.
    Bytes,
    /// As sentencepiece does. `has_bytes` says whether there are tokens for single bytes.
    Pieces { has_bytes: bool },
}

/// Texts by token id.
type Texts = Vec<Option<Vec<u8>>>;

/// The texts of a file, and its special tokens with their names.
pub(super) fn texts(bytes: &[u8]) -> Result<(Texts, Vec<(u32, String)>), String> {
    let File { model, added_tokens, decoder, pre_tokenizer } = json(bytes)?;
    let model = model.ok_or(
        "has no \"model\", so it is not a Hugging Face tokenizer.json; give one, or a JSON array of texts by token id",
    )?;
    if let Some(kind) = model.kind.filter(|kind| kind != "BPE" && kind != "Unigram") {
        return Err(format!(
            "model.type is {kind:?}; only BPE and Unigram are supported; write others as a JSON array of texts"
        ));
    }
    let writing = if mentions(&decoder, "ByteLevel") || mentions(&pre_tokenizer, "ByteLevel") {
        Writing::Bytes
    } else {
        Writing::Pieces { has_bytes: model.byte_fallback || mentions(&decoder, "ByteFallback") }
    };
    let largest = model.vocab.0.iter().map(|entry| entry.1).chain(added_tokens.iter().map(|added| added.id)).max();
    let mut texts = vec![None; largest.map_or(0, |id| id as usize + 1)];
    for (piece, id) in model.vocab.0 {
        if texts[id as usize].replace(writing.text(&piece)).is_some() {
            return Err(format!("model.vocab: token id {id} is given twice, the second time for {piece:?}"));
        }
    }
    let mut special = Vec::new();
    for Added { id, content, special: is_special } in added_tokens {
        texts[id as usize] = if is_special {
            special.push((id, content));
            None
        } else {
            Some(content.into_bytes())
        };
    }
    Ok((texts, special))
}

/// Whether a part, or one of the parts of a sequence, has this type.
fn mentions(part: &Value, kind: &str) -> bool {
    let is = part.get("type").and_then(Value::as_str) == Some(kind);
    let parts = ["decoders", "pretokenizers"].into_iter().filter_map(|list| part.get(list)?.as_array());
    is || parts.flatten().any(|part| mentions(part, kind))
}

impl Writing {
    fn text(self, piece: &str) -> Vec<u8> {
        match self {
            Self::Bytes => {
                piece.chars().map(byte_of).collect::<Option<_>>().unwrap_or_else(|| piece.as_bytes().to_vec())
            }
            Self::Pieces { has_bytes } => match byte_piece(piece).filter(|_| has_bytes) {
                Some(byte) => vec![byte],
                None => piece.replace('▁', " ").into_bytes(),
            },
        }
    }
}

/// The byte that a character of GPT-2's alphabet stands for. Printable bytes are written as themselves, the others as
/// the characters from U+0100 on, in order.
fn byte_of(c: char) -> Option<u8> {
    let is_printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    match u32::from(c) {
        code @ 0..=0xFF => Some(code as u8).filter(|&byte| is_printable(byte)),
        code => (0..=0xFF).filter(|&byte| !is_printable(byte)).nth(code as usize - 0x100),
    }
}

/// The byte of `<0xNN>`.
fn byte_piece(piece: &str) -> Option<u8> {
    let digits = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_byte = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    u8::from_str_radix(digits, 16).ok().filter(|_| is_byte)
}

/// Reads a token id, which must be below the largest vocabulary's size.
fn id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let id = u32::deserialize(deserializer)?;
    let wrong = || de::Error::custom(format_args!("token id {id} must be below {MAX_VOCAB_SIZE}"));
    if id < MAX_VOCAB_SIZE { Ok(id) } else { Err(wrong()) }
}

/// Pieces and their ids: an object, or a list of pieces with their scores.
struct Entries(Vec<(String, u32)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(EntriesVisitor)
    }
}

/// A token id.
#[derive(Deserialize)]
struct Id(#[serde(deserialize_with = "id")] u32);

struct EntriesVisitor;

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = Entries;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of token ids by text, or an array of texts with scores")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
        let mut entries = Vec::new();
        while let Some((piece, Id(id))) = map.next_entry::<String, Id>()? {
            if entries.len() == MAX_VOCAB_SIZE as usize {
                return Err(too_many());
            }
            entries.push((piece, id));
        }
        Ok(Entries(entries))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Entries, A::Error> {
        let mut entries = Vec::new();
        while let Some((piece, IgnoredAny)) = list.next_element::<(String, IgnoredAny)>()? {
            if entries.len() == MAX_VOCAB_SIZE as usize {
                return Err(too_many());
            }
            entries.push((piece, entries.len() as u32));
        }
        Ok(Entries(entries))
    }
}
