use super::fill::{Pending, Wanted};
use super::*;
use crate::sampling::mask::TokenMask;
use metrics::Gauge;
use proptest::prelude::*;
use std::sync::LazyLock;

pub(super) mod busy;
mod forced;
mod gbnf;
mod lark;
mod limits;
mod panics;
mod schemas;

const END: u32 = 1;
const OTHER_END: u32 = 2;
const BEGIN: u32 = 3;
const UNWRITTEN: u32 = 4;

/// Every byte is a token, and so are some longer texts; then control tokens without one.
static GRAMMARS: LazyLock<Grammars> = LazyLock::new(|| {
    let mut texts: Vec<Option<Vec<u8>>> = vec![None; 5];
    let longer =
        ["ye", "yes", "es", "no", "ma", "may", "maybe", "be", "{\"", "\":", " ", "12", "true", "ab", "aba", "ba"];
    texts.extend((0..=255).map(|byte| Some(vec![byte])));
    texts.extend(longer.map(|text| Some(text.as_bytes().to_vec())));
    let special = vec![(END, "<end>".to_owned()), (OTHER_END, "<stop>".to_owned()), (BEGIN, "<begin>".to_owned())];
    Grammars::new(Arc::new(Vocabulary::new(&texts, b"").with_special(special)))
});
const VOCAB: usize = 5 + 256 + 16;

fn room() -> Arc<Counter> {
    Counter::new(usize::MAX, Gauge::noop())
}

/// A grammar that starts after the first of these tokens.
fn behind(tokens: &[u32]) -> GrammarStart {
    GrammarStart { token_ids: tokens.to_vec(), ..GrammarStart::default() }
}

fn params(kind: GrammarKind, text: &str) -> GrammarParams {
    GrammarParams { kind, text: text.to_owned(), start: GrammarStart::default() }
}

fn compiled(kind: GrammarKind, text: &str) -> Arc<Compiled> {
    loop {
        match GRAMMARS.compile(&params(kind, text), &room(), &CompileDeadline::default()) {
            // Other tests may hold all turns for longer than anybody waits.
            Err(CompileError::Busy) => {}
            compiled => return compiled.expect("it is right"),
        }
    }
}

fn grammar(kind: GrammarKind, text: &str) -> Arc<Grammar> {
    Arc::new(Grammar::new(compiled(kind, text), &GrammarStart::default(), vec![END, OTHER_END]))
}

fn text(token: u32) -> &'static [u8] {
    GRAMMARS.vocabulary.text(token)
}

fn opened(grammar: &Arc<Grammar>, output: &[u32]) -> GrammarText {
    GrammarText::open(Arc::clone(grammar), &Arc::default(), VOCAB, output).expect("it matches")
}

/// What the rows of a work may emit; `None` means everything.
fn wanted(text: &GrammarText, ahead: Ahead) -> Result<Vec<Option<Vec<u32>>>, MaskError> {
    let found = Pending::begin(vec![Wanted::new(text, ahead)]).masks().pop().expect("one work")?;
    let tokens = |mask: &bytes::Bytes| TokenMask::new(mask, text.vocab_size()).tokens().collect();
    Ok(found.iter().map(|mask| mask.as_ref().map(tokens)).collect())
}

/// The same, repeated if its turn does not come, which may happen on a busy machine.
fn waited(text: &GrammarText) -> Result<Vec<Option<Vec<u32>>>, MaskError> {
    let mut tries =
        (0..30).map(|_| wanted(text, Ahead::default())).skip_while(|found| *found == Err(MaskError::NotYet));
    tries.next().unwrap_or(Err(MaskError::NotYet))
}

fn allowed(text: &GrammarText) -> Vec<u32> {
    waited(text).expect("a mask")[0].clone().expect("not all")
}

fn tokens_of(word: &str) -> Vec<u32> {
    word.bytes().map(|byte| 5 + u32::from(byte)).collect()
}

/// The tokens that may follow in a finite language.
fn by_words(words: &[&str], so_far: &[u8]) -> Vec<u32> {
    let goes_on = |token: &u32| {
        let longer = [so_far, text(*token)].concat();
        !text(*token).is_empty() && words.iter().any(|word| word.as_bytes().starts_with(&longer))
    };
    let ends = words.iter().any(|word| word.as_bytes() == so_far);
    let is_end = |token: &u32| ends && [END, OTHER_END].contains(token);
    (0..VOCAB as u32).filter(|token| is_end(token) || goes_on(token)).collect()
}

/// The same draft comes again, but the text is longer by two tokens.
#[test]
fn masks_ahead_are_those_of_the_text_as_it_is_now() {
    let grammar = grammar(GrammarKind::Regex, "xxxz");
    let [x, z] = ["x", "z"].map(|word| Some(tokens_of(word)));
    let draft = || tokens_of("x");
    let mut text = opened(&grammar, &[]);
    text.work_ahead(&draft());
    // A batch that waits would end the work.
    std::thread::sleep(std::time::Duration::from_millis(150));
    assert_eq!(wanted(&text, Ahead::chain(draft())).expect("masks"), [x.clone(), x.clone()]);
    tokens_of("xx").into_iter().for_each(|token| text.push(token));
    assert_eq!(wanted(&text, Ahead::chain(draft())).expect("masks"), [x, z]);
}

#[test]
fn looking_ahead_again_takes_no_more_memory() {
    let text = opened(&grammar(GrammarKind::Regex, "[xyz]{40}"), &[]);
    let look = || {
        assert!(wanted(&text, Ahead::chain(tokens_of("xyzxyzxyz"))).is_ok());
        text.bytes()
    };
    let once = look();
    assert_eq!((0..20).map(|_| look()).max(), Some(once));
}

/// Compares the masks at all places of a finite language with its words. Returns how many places it has.
fn compare_with_words(grammar: &Arc<Grammar>, words: &[&str]) -> usize {
    let (mut left, mut seen) = (vec![Vec::new()], 0);
    while let Some(output) = left.pop() {
        let so_far: Vec<u8> = output.iter().flat_map(|&token| text(token)).copied().collect();
        let expected = by_words(words, &so_far);
        assert_eq!(allowed(&opened(grammar, &output)), expected, "behind {:?}", String::from_utf8_lossy(&so_far));
        let goes_on = expected.iter().filter(|&&token| !text(token).is_empty());
        left.extend(goes_on.map(|&token| [&output[..], &[token]].concat()));
        seen += 1;
    }
    seen
}

#[test]
fn masks_of_a_finite_language_are_those_of_its_words() {
    let words = ["yes", "no", "maybe", "may", "aba", "abab", ""];
    let grammars = [
        grammar(GrammarKind::Regex, "yes|no|may(be)?|abab?|"),
        grammar(GrammarKind::Lark, r#"start: "yes" | "no" | "may" "be"? | "aba" "b"? | """#),
    ];
    for grammar in grammars {
        let seen = compare_with_words(&grammar, &words);
        assert!(seen > 30, "{seen} places");
    }
}

#[test]
fn behind_its_end_a_text_can_only_end() {
    let grammar = grammar(GrammarKind::Regex, "no");
    let mut whole = opened(&grammar, &tokens_of("no"));
    assert_eq!(allowed(&whole), [END, OTHER_END], "nothing can follow");
    whole.push(OTHER_END);
    assert_eq!(allowed(&whole), [END, OTHER_END]);
    whole.push(END);
    assert_eq!(allowed(&whole), [END, OTHER_END]);
    let wrong = |output: &[u32]| {
        GrammarText::open(Arc::clone(&grammar), &Arc::default(), VOCAB, output).expect_err("it does not match").field
    };
    assert_eq!(wrong(&[END]), "output_token_ids[0]", "it may not end there");
    assert_eq!(wrong(&[tokens_of("n"), tokens_of("n")].concat()), "output_token_ids[1]");
    assert_eq!(wrong(&[tokens_of("no"), vec![END], tokens_of("o")].concat()), "output_token_ids[3]");
    assert_eq!(wrong(&[UNWRITTEN]), "output_token_ids[0]");
    assert_eq!(wrong(&[VOCAB as u32]), "output_token_ids[0]", "that is no token of the vocabulary");
}

/// This holds even if these tokens have texts of their own.
#[test]
fn tokens_that_end_a_text_are_no_part_of_it() {
    let compiled = compiled(GrammarKind::Regex, "[ab]{2}");
    let [a, b] = [tokens_of("a")[0], tokens_of("b")[0]];
    let grammar = Arc::new(Grammar::new(compiled, &GrammarStart::default(), vec![a]));
    let (ab, ba) = (5 + 256 + 13, 5 + 256 + 15);
    assert_eq!(allowed(&opened(&grammar, &[])), [b, ab, ba]);
    assert_eq!(allowed(&opened(&grammar, &[b])), [b]);
    assert_eq!(allowed(&opened(&grammar, &[b, b])), [a]);
    assert_eq!(allowed(&opened(&grammar, &[ab, a])), [a], "it has ended");
    assert!(GrammarText::open(grammar, &Arc::default(), VOCAB, &[b, a]).is_err());
}

/// Two paths lead to the same position of a text, with the same lexemes, but different tokens may follow.
#[test]
fn a_text_that_steps_back_forgets_what_it_saw() {
    let grammar = grammar(GrammarKind::Lark, "start: \"y\" x \"s\" | \"n\" x \"o\" | \"m\" x \"ay\"\nx: \"e\"\n");
    let [y, n, m, e, es] =
        ["y", "n", "m", "e", "es"].map(|word| if word == "es" { 5 + 256 + 2 } else { tokens_of(word)[0] });
    let text = opened(&grammar, &[]);
    let ahead = Ahead { tokens: vec![y, n, m, y], parents: vec![-1; 4], is_last_only: false };
    let both = Some(vec![e, es]);
    assert_eq!(wanted(&text, ahead).expect("masks")[1..], [both.clone(), Some(vec![e]), Some(vec![e]), both]);
    for (first, behind) in [(n, vec![e]), (y, vec![e, es]), (m, vec![e])] {
        let mut text = opened(&grammar, &[]);
        wanted(&text, Ahead::chain(vec![y, e])).expect("masks");
        text.push(first);
        assert_eq!(allowed(&text), behind);
    }
}

/// A range of token ids also contains the id that stands for all ends.
#[test]
fn a_text_ends_only_where_its_grammar_does() {
    for start in ["<[*]> \"ab\"", "<[^5]> \"ab\"", "<[277]> \"ab\" | \"no\""] {
        let text = opened(&grammar(GrammarKind::Lark, &format!("start: {start}\n")), &[]);
        assert!(!allowed(&text).contains(&END), "{start}");
    }
}

/// Each of the properties may come next.
#[test]
fn a_grammar_begins_where_it_is_asked_to() {
    let compiled = compiled(GrammarKind::Regex, "no");
    let grammar = Arc::new(Grammar::new(compiled, &behind(&[BEGIN, UNWRITTEN]), vec![END]));
    let mut thinking = opened(&grammar, &tokens_of("what?"));
    assert_eq!(wanted(&thinking, Ahead::default()), Ok(vec![None]), "everything may come before");
    let ahead = Ahead::chain([vec![BEGIN], tokens_of("n")].concat());
    let o = tokens_of("o")[0];
    let n = [tokens_of("n")[0], 5 + 256 + 3];
    let expected = vec![None, Some(n.to_vec()), Some(vec![o])];
    assert_eq!(wanted(&thinking, ahead), Ok(expected));
    thinking.push(BEGIN);
    assert_eq!(allowed(&thinking), n);
    let reopened = opened(&grammar, &[tokens_of("what?"), vec![UNWRITTEN]].concat());
    assert_eq!(allowed(&reopened), n);
    let ended = opened(&grammar, &[END]);
    assert_eq!(allowed(&ended), [END], "a text may end before its grammar begins");
}

#[test]
fn rows_may_be_longer_or_shorter_than_the_vocabulary() {
    let grammar = grammar(GrammarKind::Regex, "[a-z]*");
    let whole = allowed(&opened(&grammar, &[]));
    assert!(whole.contains(&(5 + u32::from(b'z'))) && whole.contains(&END));
    for vocab_size in [3, 100, VOCAB - 1, VOCAB + 1, VOCAB + 500] {
        let text = GrammarText::open(Arc::clone(&grammar), &Arc::default(), vocab_size, &[]).expect("it matches");
        let found =
            Pending::begin(vec![Wanted::new(&text, Ahead::default())]).masks().pop().expect("one").expect("a mask");
        let mask = found[0].as_ref().expect("not all");
        assert_eq!(mask.len(), TokenMask::bytes_for(vocab_size));
        let expected: Vec<u32> = whole.iter().copied().filter(|&token| (token as usize) < vocab_size).collect();
        assert_eq!(TokenMask::new(mask, vocab_size).tokens().collect::<Vec<_>>(), expected, "{vocab_size}");
    }
}

/// A prompt of thousands of tokens may be scored in a grammar that cannot step back: each place goes on from the one
/// before it. If each began anew, this would take longer than a text may.
#[test]
fn thousands_of_places_are_looked_at_in_one_go() {
    let grammar = grammar(GrammarKind::Lark, "start: head\nhead[max_tokens=100000]: /[ab]*/\n");
    assert!(grammar.compiled.is_one_way);
    let tokens = vec![5 + u32::from(b'a'); 4000];
    let found = wanted(&opened(&grammar, &[]), Ahead::chain(tokens)).expect("masks");
    assert_eq!((found.len(), &found[4000]), (4001, &found[1]));
}

const SCHEMA: &str = r#"{"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"enum": ["yes", "no", true]}}},
    "required": ["a", "b"], "additionalProperties": false}"#;

/// Grammars of each kind, some of which cannot step back.
fn some_grammars() -> Vec<Arc<Grammar>> {
    vec![
        grammar(GrammarKind::JsonSchema, SCHEMA),
        grammar(GrammarKind::JsonSchema, "{}"),
        grammar(GrammarKind::Regex, "(ab|ba)+[0-9]{2}"),
        grammar(GrammarKind::Lark, "start: a\na: \"ab\" a \"ba\" | \"maybe\" | /[0-9]+/\n"),
        grammar(GrammarKind::Lark, "start: head \"no\"\nhead[max_tokens=3]: /(ab|ba)*/\n"),
        grammar(GrammarKind::Lark, "start: <[5-276]> /[ab]+/ | \"no\" <begin>\n"),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// A text that grows, one that is opened with the same tokens, and one that looks ahead along a tree are at the
    /// same places.
    #[test]
    fn growing_reopening_and_looking_ahead_agree(choices in prop::collection::vec(any::<u32>(), 1..24), branch in 0usize..20, skips in 0usize..6) {
        for grammar in some_grammars() {
            let mut text = opened(&grammar, &[]);
            let mut output = Vec::new();
            let mut expected = vec![Some(allowed(&text))];
            for &choice in &choices {
                let may = allowed(&text);
                if may.is_empty() {
                    break;
                }
                let token = may[choice as usize % may.len()];
                // A forced token must be allowed, and asking for it changes nothing.
                let forced = forced::proposed(&text, &[], 4);
                if let Some(first) = forced.tokens.first() {
                    prop_assert!(may.contains(first));
                }
                text.push(token);
                output.push(token);
                expected.push(Some(allowed(&text)));
                prop_assert_eq!(allowed(&opened(&grammar, &output)), expected[output.len()].clone().expect("one"));
            }
            // From a place on the way: a chain to the end, and a second branch, which is equal at first and goes on
            // with a wrong token.
            let start = skips.min(output.len());
            let from = opened(&grammar, &output[..start]);
            let rest = &output[start..];
            let mut ahead = Ahead::chain(rest.to_vec());
            let branch = branch.min(rest.len());
            ahead.tokens.extend(rest.get(branch).copied().into_iter().chain([UNWRITTEN, END]));
            ahead.parents.push(branch as i32 - 1);
            ahead.parents.truncate(ahead.tokens.len());
            while ahead.parents.len() < ahead.tokens.len() {
                ahead.parents.push(ahead.parents.len() as i32 - 1);
            }
            let found = wanted(&from, ahead).expect("masks");
            prop_assert_eq!(&found[..=rest.len()], &expected[start..]);
            if branch < rest.len() {
                prop_assert_eq!(&found[rest.len() + 1], &expected[start + branch + 1]);
            }
            prop_assert_eq!(found.last(), Some(&None), "nothing is said of what follows a wrong token");
            prop_assert_eq!(allowed(&from), expected[start].clone().expect("one"), "looking ahead changes nothing");
            let last = || Ahead { is_last_only: true, ..Ahead::chain(rest.to_vec()) };
            prop_assert_eq!(wanted(&from, last()).expect("masks"), &expected[output.len()..]);
            // What was computed ahead is the same, as far as it is needed.
            let mut drafted = opened(&grammar, &output[..start]);
            drafted.work_ahead(rest);
            let part = &rest[..branch];
            prop_assert_eq!(wanted(&drafted, Ahead::chain(part.to_vec())).expect("masks"), &expected[start..=start + branch]);
            prop_assert_eq!(wanted(&drafted, last()).expect("masks"), &expected[output.len()..]);
            prop_assert_eq!(wanted(&drafted, Ahead::chain(rest.to_vec())).expect("masks"), &expected[start..]);
            if let Some(&next) = rest.first() {
                drafted.push(next);
                prop_assert_eq!(wanted(&drafted, Ahead::chain(rest[1..].to_vec())).expect("masks"), &expected[start + 1..]);
            }
        }
    }

    /// Whatever is drawn, a text that has ended matches the schema.
    #[test]
    fn what_ends_is_a_value_of_the_schema(choices in prop::collection::vec(any::<u32>(), 200)) {
        let grammar = grammar(GrammarKind::JsonSchema, SCHEMA);
        let mut text = opened(&grammar, &[]);
        let mut written = Vec::new();
        for choice in choices {
            let may = allowed(&text);
            // The text ends as soon as it may.
            let token = if may.contains(&END) { END } else { may[choice as usize % may.len()] };
            if token == END {
                let value: serde_json::Value = serde_json::from_slice(&written).expect("it is JSON");
                prop_assert!(value["a"].is_number() && value["b"].is_array());
                return Ok(());
            }
            text.push(token);
            written.extend_from_slice(GRAMMARS.vocabulary.text(token));
        }
    }

    /// Any text given as a grammar is compiled or refused.
    #[test]
    fn no_text_of_a_grammar_fails_the_compiler(text in "[a-z\"/(){}\\[\\]|*+?:,%&@<>=0-9\\\\ \n]{1,60}", kind in 0usize..3) {
        let kind = [GrammarKind::JsonSchema, GrammarKind::Regex, GrammarKind::Lark][kind];
        if let Ok(compiled) = GRAMMARS.compile(&params(kind, &text), &room(), &CompileDeadline::default()) {
            let grammar = Arc::new(Grammar::new(compiled, &GrammarStart::default(), vec![END]));
            let text = opened(&grammar, &[]);
            prop_assert!(wanted(&text, Ahead::default()).is_ok());
        }
    }
}

#[test]
fn what_is_wrong_is_told_at_its_field() {
    let wrong = |kind, text: &str| match GRAMMARS.compile(&params(kind, text), &room(), &CompileDeadline::default()) {
        Err(CompileError::Invalid(FieldError { field, message })) => (field, message),
        other => panic!("{text} gives {other:?}"),
    };
    let (field, message) = wrong(GrammarKind::JsonSchema, "{");
    assert_eq!(field, "json_schema");
    assert!(message.starts_with("is not valid JSON: EOF"), "{message}");
    let (field, message) = wrong(GrammarKind::JsonSchema, r#"{"type": "no such type"}"#);
    assert!(field == "json_schema" && message.contains("no such type"), "{message}");
    let (field, message) = wrong(GrammarKind::Regex, "(ab");
    assert_eq!((&*field, &*message), ("regex", "unclosed group, at character 1"));
    let (_, message) = wrong(GrammarKind::Regex, r"a[z-a]\n");
    assert_eq!(message, "invalid character class range, the start must be <= the end, at character 3");
    let (_, message) = wrong(GrammarKind::Regex, r"a\b");
    assert!(message.contains("word boundary") && !message.contains("start:"), "{message}");
    let (_, message) = wrong(GrammarKind::JsonSchema, r#"{"not": {"type": "string"}}"#);
    assert!(message.ends_with(r#"follow here: ["not"]; write the schema without them (at /not)"#), "{message}");
    let (field, message) = wrong(GrammarKind::Lark, "start: nothing");
    assert!(field == "lark" && message.contains("nothing"), "{message}");
    assert!(!message.contains('\n') && message.len() < 1000);
}
