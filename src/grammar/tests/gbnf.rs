//! GBNF: the masks must equal what reading a text character by character allows.

use super::super::gbnf::stacks::{Plain, Stacks};
use super::super::gbnf::to_lark;
use super::*;

/// The allowed tokens, by definition; `None` if that takes too long to find out.
fn by_stacks(text_so_far: &Stacks<'_>) -> Option<Vec<u32>> {
    let mut is_lost = text_so_far.is_lost();
    let is_end = |token: u32| text_so_far.is_whole() && [END, OTHER_END].contains(&token);
    let mut goes_on = |token: u32| {
        let after = (!is_lost && !text(token).is_empty()).then(|| text_so_far.with(text(token))).flatten();
        is_lost |= after.as_ref().is_some_and(Stacks::is_lost);
        after.is_some()
    };
    let allowed = (0..VOCAB as u32).filter(|token| is_end(*token) || goes_on(*token)).collect();
    (!is_lost).then_some(allowed)
}

/// Follows random texts of a grammar, and compares each mask on the way.
fn follow(gbnf: &str, choices: &[prop::sample::Index]) {
    let (plain, grammar) = (Plain::new(gbnf), grammar(GrammarKind::Gbnf, gbnf));
    let (mut stacks, mut own) = (plain.begun(), opened(&grammar, &[]));
    let mut so_far = vec![];
    for choice in choices {
        let allowed = allowed(&own);
        let Some(expected) = by_stacks(&stacks) else {
            return eprintln!("left out, since there are too many ways to read {so_far:?} by\n{gbnf}");
        };
        let lark = to_lark(gbnf);
        assert_eq!(allowed, expected, "behind {:?} of\n{gbnf}\n{lark:?}", String::from_utf8_lossy(&so_far));
        let mut written: Vec<u32> = allowed.into_iter().filter(|token| !text(*token).is_empty()).collect();
        if written.iter().any(|token| text(*token).is_ascii()) {
            // Otherwise most of the text would be bytes of longer characters.
            written.retain(|token| text(*token).is_ascii());
        }
        let Some(token) = written.get(choice.index(written.len().max(1))) else { return };
        so_far.extend(text(*token));
        stacks = stacks.with(text(*token)).expect("it is allowed");
        own.push(*token);
    }
}

/// Rules over a few characters. The first rule calls the others. Each rule calls itself and the others only after a
/// character of its own, since llama.cpp does not allow left recursion.
fn rules() -> impl Strategy<Value = String> {
    prop::collection::vec(body(), 3).prop_map(|bodies| {
        let names = ["root", "one", "two"];
        names.iter().zip(bodies).map(|(name, body)| format!("{name} ::= {body}\n")).collect()
    })
}

fn body() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        4 => "[abé]{1,3}".prop_map(|text| format!("\"{text}\"")),
        3 => prop::sample::select(vec!["[ab]", "[a-c]", "[^b]", "[bé]", "[^a-zé]", "\"\"", "."]).prop_map(str::to_owned),
        2 => prop::sample::select(vec!["\"a\" one", "\"b\" root", "[ab] two", "\"é\" root \"b\"", "\"a\" two?"]).prop_map(str::to_owned),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let times = prop::sample::select(vec!["*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}"]);
        prop_oneof![
            3 => prop::collection::vec(inner.clone(), 2..4).prop_map(|parts| parts.join(" ")),
            2 => prop::collection::vec(inner.clone(), 2..4).prop_map(|parts| format!("({})", parts.join(" | "))),
            2 => (inner, times).prop_map(|(of, times)| format!("({of}){times}")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn masks_are_what_reading_by_characters_allows(
        gbnf in rules(),
        texts in prop::collection::vec(prop::collection::vec(any::<prop::sample::Index>(), 1..8), 1..4),
    ) {
        for choices in texts {
            follow(&gbnf, &choices);
        }
    }
}

/// Grammars like those of llama.cpp's examples.
const EXAMPLES: [(&str, &str); 7] = [
    (
        "JSON",
        r#"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
# Optional space: by convention, applied in this grammar after literal chars when allowed
ws ::= | " " | "\n" [ \t]{0,20}
"#,
    ),
    (
        "sums",
        r#"
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"#,
    ),
    (
        "white space that calls itself, and rules over lines",
        r#"root ::= item
    ("," ws item)* # more
    | ws
item ::= (
    "may"
    | "maybe" ws
    | [a-y]+ "be"
)
ws ::= ([ \t\n] ws)?"#,
    ),
    (
        "C",
        r#"
root ::= (declaration)*
declaration ::= dataType identifier "(" parameter? ")" "{" statement* "}"
dataType  ::= "int" ws | "float" ws | "char" ws
identifier ::= [a-zA-Z_] [a-zA-Z_0-9]*
parameter ::= dataType identifier
statement ::=
    ( dataType identifier ws "=" ws expression ";" ) |
    ( identifier ws "=" ws expression ";" ) |
    ( "return" ws expression ";" ) |
    ( "while" "(" condition ")" "{" statement* "}" )
condition ::= expression relationOperator expression
relationOperator ::= ("<=" | "<" | "==" | "!=" | ">=" | ">")
expression ::= term (("+" | "-") term)*
term ::= factor(("*" | "/") factor)*
factor ::= identifier | number | unaryTerm | funcCall | parenExpression
unaryTerm ::= "-" factor
funcCall ::= identifier "(" argList? ")"
parenExpression ::= "(" ws expression ws ")"
argList ::= expression ("," ws expression)*
number ::= [0-9]+
ws ::= ([ \t\n]+)
"#,
    ),
    (
        "an object with other keys, as llama.cpp makes it of a schema",
        r#"
additional-k ::= ["] ( [a] ([g] ([e] char+ | [^"e] char*) | [^"g] char*) | [^"a] char* )? ["] space
additional-kv ::= additional-k ":" space value
age-kv ::= "\"age\"" space ":" space integer
array ::= "[" space ( value ("," space value)* )? "]" space
char ::= [^"\\\x7F\x00-\x1F] | [\\] (["\\bfnrt] | "u" [0-9a-fA-F]{4})
integer ::= ("-"? [0-9]{1,16}) space
object ::= "{" space ( string ":" space value ("," space string ":" space value)* )? "}" space
root ::= "{" space age-kv ( "," space ( additional-kv ( "," space additional-kv )* ) )? "}" space
space ::= | " " | "\n"{1,2} [ \t]{0,20}
string ::= "\"" char* "\"" space
value ::= object | array | string | integer | "null" space
"#,
    ),
    (
        "a list",
        "root ::= item+\n# Excludes various line break characters\nitem ::= \"- \" [^\\r\\n\\x0b\\x0c\\x85\\u2028\\u2029]+ \"\\n\"\n",
    ),
    (
        "Japanese",
        "root ::= jp-char+ ([ \\t\\n] jp-char+)*\njp-char ::= hiragana | katakana | punct | cjk\nhiragana ::= [ぁ-ゟ]\nkatakana ::= [ァ-ヿ]\npunct ::= [、-〾]\ncjk ::= [一-鿿]\n",
    ),
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn masks_of_known_grammars_are_right_too(
        example in 0..EXAMPLES.len(),
        choices in prop::collection::vec(any::<prop::sample::Index>(), 1..40),
    ) {
        follow(EXAMPLES[example].1, &choices);
    }
}

/// Left-recursive rules never end in llama.cpp.
#[test]
fn a_rule_may_call_itself_anywhere() {
    for gbnf in [
        "root ::= root \"b\" | \"a\"",
        "root ::= \"a\" rest\nrest ::= rest \"b\" |",
        "root ::= \"a\" \"b\"*",
        "root ::= \"a\" b\nb ::= (\"b\" b)?",
    ] {
        let grammar = grammar(GrammarKind::Gbnf, gbnf);
        let text = opened(&grammar, &tokens_of("abb"));
        assert_eq!(allowed(&text), [&[END, OTHER_END][..], &tokens_of("b")].concat(), "{gbnf}");
        assert!(GrammarText::open(Arc::clone(&grammar), &Arc::default(), VOCAB, &tokens_of("aba")).is_err(), "{gbnf}");
    }
}

/// Repetitions in one terminal make masks fast.
#[test]
fn what_is_regular_is_one_terminal() {
    let terminals =
        |gbnf: &str| to_lark(gbnf).expect("it is right").lines().filter(|line| line.starts_with('T')).count();
    assert_eq!(terminals("root ::= (\"a\" [b-z]* one)?\none ::= [0-9]{2,4} ws \"x\"\nws ::= [ \\n]*"), 1);
    assert_eq!(terminals("root ::= \"a\" root? [b-z]+ \"0\""), 2, "what stands before and behind");
    assert_eq!(terminals("root ::= [a-z]+ root? \"b\""), 2, "the letters, one by one, and b");
    // Strings, numbers and words are complete with the space after them, whatever happens to the space before.
    let json = to_lark(EXAMPLES[0].1).expect("it is right");
    let is_string = |line: &str| line.starts_with('T') && line.contains("[0-9A-Fa-f]") && line.contains("x{5C}bfnrt");
    assert!(json.lines().any(is_string) && json.lines().count() < 30, "{json}");
}

#[test]
fn a_token_stands_by_its_number_or_its_name() {
    let grammar = grammar(GrammarKind::Gbnf, "root ::= \"a\" (<[3]> | \"b\") <begin> [ab]*");
    let begun = opened(&grammar, &tokens_of("a"));
    assert_eq!(allowed(&begun), [&[BEGIN][..], &tokens_of("b")].concat());
    let text = opened(&grammar, &[&tokens_of("a")[..], &[BEGIN, BEGIN]].concat());
    let ab: Vec<u32> = (5..VOCAB as u32).filter(|token| text_is_of(*token, b"ab")).collect();
    assert_eq!(allowed(&text), [&[END, OTHER_END][..], &ab].concat());
}

fn text_is_of(token: u32, bytes: &[u8]) -> bool {
    !text(token).is_empty() && text(token).iter().all(|byte| bytes.contains(byte))
}

#[test]
fn mistakes_are_told_with_their_line() {
    let deep = format!("root ::= {}\"a\"{}", "(".repeat(102), ")".repeat(102));
    let wrong = [
        ("root ::= \"a\"\nb \"c\"", "line 2: rule b is not defined"),
        ("b ::= \"a\"", "has no rule named root"),
        ("root ::= \"a\"\n\n  | one", "line 3: rule one is not defined"),
        ("root ::= \"a\"\nroot ::= \"b\"", "line 2: rule root is already defined"),
        ("root ::= \"a", "line 1: a text in double quotes is not closed"),
        ("root ::= 'a'", "line 1: unexpected '\\''; put text in double quotes"),
        ("root ::= [a", "line 1: a character class is not closed with ]"),
        ("root ::= [z-a]", "the range 'z'-'a' is reversed; swap its ends"),
        ("root ::= []", "a character class matches nothing"),
        ("root ::= [^\\x00-\\U0010FFFF]", "a character class matches nothing"),
        ("root ::= \"\\q\"", "unknown escape; known: \\n,"),
        ("root ::= \"\\uD800\"", "4 hexadecimal digits of a valid character"),
        ("root ::= *", "there is nothing before *"),
        ("root ::= \"a\"{x}", "not a valid repeat count; write {m}, {m,}, {,n} or {m,n}"),
        ("root ::= \"a\"{3,2}", "{3,2} has a minimum above its maximum"),
        ("root ::= \"a\"{2001}", "at most 2000 times"),
        ("root ::= (\"a\"", "line 1: a group is not closed with )"),
        ("root ::= \"a\")", "line 1: expected a rule, name ::= "),
        ("root ::= !<end>", "!<...> is not supported"),
        ("root ::= <", "not a valid token; write <[7]>"),
        (&deep, "groups are nested more than 100 deep"),
    ];
    for (gbnf, expected) in wrong {
        let told =
            GRAMMARS.compile(&params(GrammarKind::Gbnf, gbnf), &room(), &CompileDeadline::default()).expect_err(gbnf);
        let CompileError::Invalid(told) = told else { panic!("{gbnf}: {told:?}") };
        assert!(told.message.contains(expected), "{gbnf}: {told:?}");
    }
}

#[test]
fn choices_are_one_a_line() {
    let grammar = grammar(GrammarKind::Choices, "yes\r\nno (really?)\nmay\nmaybe\n");
    for so_far in ["", "m", "may", "no (", "maybe"] {
        let expected = by_words(&["yes", "no (really?)", "may", "maybe"], so_far.as_bytes());
        assert_eq!(allowed(&opened(&grammar, &tokens_of(so_far))), expected, "{so_far:?}");
    }
    let wrong = |text: &str| params(GrammarKind::Choices, text).validate(VOCAB as u32).expect_err("wrong").message;
    assert!(wrong("a\n\nb").starts_with("line 2 is empty"));
    assert!(wrong("\n").starts_with("line 1 is empty") && wrong("").starts_with("is empty"));
    assert_eq!(params(GrammarKind::Choices, &"a?".repeat(9_000)).validate(VOCAB as u32), Ok(()));
}
