//! JSON schemas inside the rules of a Lark grammar, as tool calls need them.

use super::super::propose::Proposed;
use super::forced::proposed;
use super::*;

/// One or two calls of tools, each with its own schema, between texts.
const CALLS: &str = r##"start: "no" | call call?
call: "be" tool "ye"
tool: %json {"const": {"a": 12}, "x-guidance": {"whitespace_flexible": false}} | %json {
    "$defs": {"flag": {"enum": [true, "ab"]}},
    "type": "object", "properties": {"no": {"$ref": "#/$defs/flag"}}, "required": ["no"], "additionalProperties": false,
    "x-guidance": {"whitespace_flexible": false}
}
"##;

#[test]
fn schemas_between_texts_have_the_masks_of_their_words() {
    let calls = [r#"be{"a":12}ye"#, r#"be{"no":true}ye"#, r#"be{"no":"ab"}ye"#];
    let twice = calls.iter().flat_map(|one| calls.map(|other| format!("{one}{other}")));
    let words: Vec<String> = calls.map(str::to_owned).into_iter().chain(twice).chain(["no".to_owned()]).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let seen = compare_with_words(&grammar(GrammarKind::Lark, CALLS), &words);
    assert!(seen > 300, "{seen} places");
}

/// The words of a schema do not stop its grammar from being looked ahead in.
#[test]
fn a_call_is_drafted_as_far_as_it_is_forced() {
    let lark = |schema: &str| grammar(GrammarKind::Lark, &format!("start: \"yes\" %json {schema} \"no\"\n"));
    let grammar = lark(r#"{"const": "stop max_tokens"}"#);
    let forced = |so_far: &str| {
        let Proposed { tokens, .. } = proposed(&opened(&grammar, &tokens_of(so_far)), &[], 64);
        tokens.iter().flat_map(|&token| text(token)).copied().collect::<Vec<u8>>()
    };
    assert_eq!(forced(""), br#"yes"stop max_tokens"no"#);
    assert_eq!(forced("yes\"st"), br#"op max_tokens"no"#);
}

/// Tokens drawn at random where the grammar allows them, until the text ends or has 40 of them. Returns its bytes.
fn drawn(grammar: &Arc<Grammar>, seed: u64) -> (Vec<u8>, bool) {
    let (mut text, mut bytes, mut random) = (opened(grammar, &[]), Vec::new(), seed);
    for _ in 0..40 {
        let allowed = allowed(&text);
        random = random.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        let token = allowed[(random >> 33) as usize % allowed.len()];
        text.push(token);
        if [END, OTHER_END].contains(&token) {
            return (bytes, true);
        }
        assert!(token >= 5, "token {token} is a control token, behind {bytes:?}");
        bytes.extend(super::text(token));
    }
    (bytes, false)
}

/// What a grammar excludes is text; it does not allow what is none.
#[test]
fn all_but_some_texts_are_texts() {
    let begins_well = |bytes: &[u8]| match std::str::from_utf8(bytes) {
        Ok(_) => true,
        Err(error) => error.error_len().is_none(),
    };
    for lark in [
        "start: ~/a*/",
        "start: A\nA: ~(/(?s:.*)no(?s:.*)/)",
        "start: \"ye\" (~\"s\" | /b/)",
        "start: A~2\nA: /x/ | ~/./",
    ] {
        let grammar = grammar(GrammarKind::Lark, lark);
        let (mut ended, mut written) = (0, 0);
        for seed in 0..40 {
            let (bytes, is_end) = drawn(&grammar, seed);
            assert!(begins_well(&bytes), "{lark}: {bytes:?}");
            assert!(!is_end || std::str::from_utf8(&bytes).is_ok(), "{lark}: {bytes:?}");
            (ended, written) = (ended + usize::from(is_end), written + bytes.len());
        }
        assert!(written > 40, "{lark}: {written} bytes, {ended} texts ended");
    }
}

/// Bytes that are no text begin the names of control tokens.
#[test]
fn no_expression_matches_what_is_no_text() {
    for (kind, text) in [
        (GrammarKind::Regex, r"a(?-u:\xff)"),
        (GrammarKind::Regex, r"(?-u:[^a])*"),
        (GrammarKind::Regex, r"(?s-u:.)"),
        (GrammarKind::Regex, r"(?-u:\xC3)(?-u:\xA9)"),
        (GrammarKind::Lark, r"start: /(?-u:\xff)<end>/"),
        (GrammarKind::Lark, "%ignore /(?-u:\\xff)/\nstart: \"a\" \"b\""),
        (GrammarKind::JsonSchema, r#"{"type": "string", "pattern": "(?-u:\\W)"}"#),
        (GrammarKind::JsonSchema, r#"{"patternProperties": {"(?-u:\\xff)": {}}}"#),
        (GrammarKind::JsonSchema, r#"{"x-guidance": {"whitespace_pattern": "(?-u:\\xff)"}}"#),
    ] {
        let told = refused(kind, text);
        assert!(told.contains("invalid UTF-8"), "{told}");
    }
    // These are the characters of these numbers.
    for (kind, text) in [
        (GrammarKind::Regex, r"\xff"),
        (GrammarKind::Lark, r#"start: "\xff""#),
        (GrammarKind::Gbnf, r#"root ::= "\xff""#),
        (
            GrammarKind::JsonSchema,
            r#"{"type": "string", "pattern": "^\\xff$", "x-guidance": {"whitespace_flexible": false}}"#,
        ),
    ] {
        let start = if kind == GrammarKind::JsonSchema { "\"" } else { "" };
        let may = allowed(&opened(&grammar(kind, text), &tokens_of(start)));
        assert_eq!(may, [5 + 0xC3], "{text}");
    }
}

fn refused(kind: GrammarKind, text: &str) -> String {
    loop {
        match GRAMMARS.compile(&params(kind, text), &room(), &CompileDeadline::default()) {
            Err(CompileError::Busy) => {}
            Err(CompileError::Invalid(error)) => return error.message,
            other => panic!("{text}: {other:?}"),
        }
    }
}

#[test]
fn a_grammar_of_no_text_is_refused() {
    for (kind, text) in [
        (GrammarKind::Regex, "[a&&b]"),
        (GrammarKind::Gbnf, "root ::= root"),
        (GrammarKind::Lark, "start: start"),
        (GrammarKind::JsonSchema, r##"{"$ref": "#"}"##),
    ] {
        let told = refused(kind, text);
        assert!(told.starts_with("matches no text"), "{text}: {told}");
    }
    // One that matches nothing but the empty text, and one that begins with a control token.
    for (kind, text) in [(GrammarKind::Regex, ""), (GrammarKind::Lark, "start: <begin> \"a\"")] {
        compiled(kind, text);
    }
}

/// A name has one spelling, so that no schema of a name can be avoided.
#[test]
fn no_name_is_spelled_otherwise() {
    let schema = r#"{"type": "object", "properties": {"no": {"const": 12}}, "required": ["no"],
        "x-guidance": {"whitespace_flexible": false}}"#;
    for (kind, text) in
        [(GrammarKind::JsonSchema, schema.to_owned()), (GrammarKind::Lark, format!("start: %json {schema}"))]
    {
        let grammar = grammar(kind, &text);
        let next = |so_far: &str| {
            let next = allowed(&opened(&grammar, &tokens_of(so_far)));
            move |byte: u8| next.contains(&(5 + u32::from(byte)))
        };
        let (behind, escape) = (next("{\"no\":12,\""), next("{\"no\":12,\"\\"));
        assert!(behind(b'a') && behind(b'\\') && escape(b'n') && escape(b'"') && !escape(b'u'), "{kind:?}");
    }
    // Where no other name is allowed, a value may have any escape.
    let closed = schema
        .replace("\"required\"", "\"additionalProperties\": false, \"required\"")
        .replace("{\"const\": 12}", "{}");
    let next = allowed(&opened(&grammar(GrammarKind::JsonSchema, &closed), &tokens_of("{\"no\":\"\\")));
    assert!(next.contains(&(5 + u32::from(b'u'))));
}
