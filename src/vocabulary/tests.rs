use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};

fn list(texts: &[&str]) -> Vocabulary {
    Vocabulary::new(&texts.iter().map(|text| Some(text.as_bytes().to_vec())).collect::<Vec<_>>(), b"")
}

/// Texts by token id, for inspection.
fn parsed(file: &Value) -> Result<Vec<Option<Vec<u8>>>, String> {
    tokenizer::texts(file.to_string().as_bytes()).map(|(texts, _)| texts)
}

fn told(bytes: &[u8]) -> String {
    Vocabulary::parse(bytes).expect_err("it is wrong")
}

fn some(text: &[u8]) -> Option<Vec<u8>> {
    Some(text.to_vec())
}

#[test]
fn a_beginning_is_found_by_places() {
    let known = list(&["foo", "", "f", "foobar", "fo", "foo", "g"]);
    let begun = |token| (0..8).filter(|&other| known.begins(token, other)).collect::<Vec<_>>();
    let expected: [&[u32]; 8] = [&[0, 3, 5], &[], &[0, 2, 3, 4, 5], &[3], &[0, 3, 4, 5], &[0, 3, 5], &[6], &[]];
    assert_eq!((0..8).map(begun).collect::<Vec<_>>(), expected);
    assert_eq!((known.tokens(), known.texts()), (7, 6));
    assert_eq!((known.place(1), known.behind(1), known.place(7), known.behind(7)), (None, 0, None, 0));
}

proptest! {
    #[test]
    fn places_are_beginnings(texts in prop::collection::vec(prop::option::of("[ab]{0,4}"), 0..40)) {
        let bytes: Vec<_> = texts.iter().map(|text| text.clone().map(String::into_bytes)).collect();
        let known = Vocabulary::new(&bytes, b"");
        for (a, text) in (0..).zip(&texts) {
            for (b, other) in (0..).zip(&texts) {
                let begins = |text: &String, other: &String| !text.is_empty() && other.starts_with(text);
                let expected = text.as_ref().zip(other.as_ref()).is_some_and(|(text, other)| begins(text, other));
                prop_assert_eq!(known.begins(a, b), expected, "{:?} {:?}", text, other);
            }
        }
    }
}

#[test]
fn byte_level_pieces_are_bytes() {
    // Ġ is a space, Ċ a line feed, ñ the byte 0xF1, Ń stands for 0xAD, the last of the 68 bytes that are not printable.
    let vocab = json!({"Ġa": 1, "Ċ": 0, "ñ": 3, "Ń": 2, "▁": 4, "<0x0A>": 5, "ĀġĢł": 6});
    let expected: Vec<_> =
        [&b"\n"[..], b" a", b"\xAD", b"\xF1", "▁".as_bytes(), b"<0x0A>", b"\x00\x7f\x80\xA0"].map(some).into();
    let level = json!({"type": "ByteLevel", "add_prefix_space": false});
    let sequence = json!({"type": "Sequence", "pretokenizers": [{"type": "Split"}, level]});
    for (decoder, before) in [
        (level.clone(), Value::Null),
        (Value::Null, sequence),
        (json!({"type": "Sequence", "decoders": [level]}), Value::Null),
    ] {
        let file = json!({"model": {"type": "BPE", "vocab": vocab, "merges": [["a", "b"]]}, "decoder": decoder, "pre_tokenizer": before});
        assert_eq!(parsed(&file), Ok(expected.clone()));
    }
}

#[test]
fn the_alphabet_is_that_of_gpt_2() {
    // As its authors build it: printable bytes unchanged, the others from 256 on.
    let mut bytes: Vec<u32> = (33..=126).chain(161..=172).chain(174..=255).collect();
    let mut characters = bytes.clone();
    for byte in (0..256).filter(|byte| !(33..=126).chain(161..=172).chain(174..=255).any(|b| b == *byte)) {
        characters.push(256 + (bytes.len() as u32 - 188));
        bytes.push(byte);
    }
    for (byte, character) in bytes.into_iter().zip(characters) {
        let vocab = json!({char::from_u32(character).expect("a character").to_string(): 0});
        let file = json!({"model": {"vocab": vocab}, "decoder": {"type": "ByteLevel"}});
        assert_eq!(parsed(&file), Ok(vec![some(&[byte as u8])]), "{byte}");
    }
}

#[test]
fn sentencepiece_pieces_have_spaces_and_bytes() {
    let decoders = json!([{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]);
    let vocab = json!({"▁the": 0, "<0x0A>": 1, "<0xff>": 2, "<0x1>": 3, "<0x+1>": 4, "Ġ": 5});
    let with = |has_bytes| {
        let (line, byte): (&[u8], &[u8]) = if has_bytes { (b"\n", b"\xFF") } else { (b"<0x0A>", b"<0xff>") };
        Ok([b" the", line, byte, b"<0x1>", b"<0x+1>", "Ġ".as_bytes()].map(some).to_vec())
    };
    let file = |model: Value, decoder: Value| parsed(&json!({"model": model, "decoder": decoder}));
    assert_eq!(file(json!({"vocab": vocab}), json!({"type": "Sequence", "decoders": decoders})), with(true));
    assert_eq!(file(json!({"vocab": vocab, "byte_fallback": true}), Value::Null), with(true));
    assert_eq!(file(json!({"vocab": vocab}), Value::Null), with(false));
    let unigram = json!({"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["▁a", -1.5], ["▁▁", -2]]});
    assert_eq!(file(unigram, json!({"type": "Metaspace"})), Ok([&b"<unk>"[..], b" a", b"  "].map(some).to_vec()));
}

/// Files that Hugging Face's library wrote, with the texts that it gives the tokens (tests/vocabulary/make.py).
#[test]
fn tokens_are_what_the_library_says() {
    let file = |name: &str| {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vocabulary");
        std::fs::read(format!("{folder}/{name}.json")).expect("it is there")
    };
    let said: Value = serde_json::from_slice(&file("texts")).expect("JSON");
    for name in ["byte_level", "byte_fallback", "unigram"] {
        let (texts, _) = tokenizer::texts(&file(name)).expect("it is right");
        // For bytes that are not valid text, the library gives the same as this.
        let texts: Vec<_> = texts.iter().map(|text| text.as_deref().map(String::from_utf8_lossy)).collect();
        assert_eq!(json!(texts), said[name], "{name}");
        assert!(texts.len() > 200);
    }
}

#[test]
fn added_tokens_are_what_they_say() {
    let added = json!([
        {"id": 1, "content": "<|end|>", "special": true},
        {"id": 4, "content": "Ġ▁x", "special": false, "lstrip": true},
        {"id": 0, "content": "over"},
    ]);
    let file = json!({
        "version": "1.0",
        "added_tokens": added,
        "model": {"vocab": {"a": 0, "<|end|>": 1, "Ġb": 2}},
        "decoder": {"type": "ByteLevel"},
        "post_processor": {"type": "ByteLevel"},
    });
    assert_eq!(parsed(&file), Ok(vec![some(b"over"), None, some(b" b"), None, some("Ġ▁x".as_bytes())]));
    let known = Vocabulary::parse(file.to_string().as_bytes()).expect("it is right");
    assert_eq!((known.tokens(), known.texts()), (5, 3));
}

#[test]
fn a_list_is_texts_by_token_id() {
    let known = Vocabulary::parse(br#" ["a", null, "", "ab"]"#).expect("it is right");
    assert_eq!((known.tokens(), known.texts(), known.begins(0, 3), known.begins(3, 0)), (4, 2, true, false));
    assert_eq!(known.sha256(), "fccf2561a066033322e2b32e812f35dfec19b1798451a91ed4a60148f0dab685");
    assert_eq!(known, Vocabulary::parse(br#" ["a", null, "", "ab"]"#).expect("the same"));
    assert_ne!(known, Vocabulary::parse(br#"["a", null, "", "ab"]"#).expect("another file"));
}

#[test]
fn mistakes_are_told_with_their_places() {
    let cases: [(&[u8], &str); 17] = [
        (b"", "is neither a tokenizer.json nor a JSON array of texts"),
        (b"\xFF\xFE[", "is neither a tokenizer.json nor a JSON array of texts"),
        (b"\"a\"", "is neither a tokenizer.json nor a JSON array of texts"),
        (b"[", "EOF while parsing a list at line 1 column 1"),
        (b"[]", "has no token with a text"),
        (b"[null, null]", "has no token with a text"),
        (b"[\"a\",\n7]", "invalid type: integer `7`, expected a string at line 2 column 1"),
        (b"[\"\xFF\"]", "invalid unicode code point at line 1 column 3"),
        (b"[\"a\"] x", "trailing characters at line 1 column 7"),
        (
            b"{\"a\": 1}",
            "has no \"model\", so it is not a Hugging Face tokenizer.json; give one, or a JSON array of texts by token id",
        ),
        (b"{\"model\": {\"type\": \"BPE\"}}", "missing field `vocab` at line 1 column 25"),
        (
            b"{\"model\": {\"type\": \"WordPiece\", \"vocab\": {}}}",
            "model.type is \"WordPiece\"; only BPE and Unigram are supported; write others as a JSON array of texts",
        ),
        (
            b"{\"model\": {\"vocab\": 1}}",
            "invalid type: integer `1`, expected an object of token ids by text, or an array of texts with scores at line 1 column 21",
        ),
        (b"{\"model\": {\"vocab\":\n{\"a\": -1}}}", "invalid value: integer `-1`, expected u32 at line 2 column 8"),
        (b"{\"model\": {\"vocab\":\n{\"a\": 1048576}}}", "token id 1048576 must be below 1048576 at line 2 column 14"),
        (
            b"{\"model\": {\"vocab\": {\"a\": 1, \"b\": 1}}}",
            "model.vocab: token id 1 is given twice, the second time for \"b\"",
        ),
        (
            b"{\"model\": {\"vocab\": {}}, \"added_tokens\": [{\"id\": 0}]}",
            "missing field `content` at line 1 column 51",
        ),
    ];
    for (bytes, expected) in cases {
        assert_eq!(told(bytes), expected, "{}", String::from_utf8_lossy(bytes));
    }
}

#[test]
fn no_file_is_too_large() {
    let most = 1 << 20;
    let texts = |count: usize| format!("[{}\"a\"]", "null,".repeat(count - 1));
    assert_eq!(Vocabulary::parse(texts(most).as_bytes()).expect("as many as may be").tokens(), most);
    assert!(told(texts(most + 1).as_bytes()).starts_with("more than 1048576 tokens at line 1"));
    let vocab = |pieces: String| format!("{{\"model\": {{\"vocab\": {pieces}}}}}");
    let scored = vocab(format!("[{}[\"a\", 0]]", "[\"\", 0],".repeat(most)));
    assert!(told(scored.as_bytes()).starts_with("more than 1048576 tokens at line 1"));
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("large.json");
    std::fs::File::create(&path).and_then(|file| file.set_len((64 << 20) + 1)).expect("a sparse file");
    let problem = Vocabulary::read(&path).expect_err("it is too large");
    assert_eq!(problem, format!("{}: has more than 67108864 bytes, the most that is allowed", path.display()));
    let missing = Vocabulary::read(&dir.path().join("none")).expect_err("there is none");
    assert!(missing.contains("none: cannot be read: "), "{missing}");
}
