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
