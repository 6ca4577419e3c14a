//! Tokens that a grammar forces, and how far it lets others propose.

use super::super::propose::{PendingDrafts, Proposed, ToDraft};
use super::*;
use std::time::Duration;

pub(super) fn proposed(text: &GrammarText, own: &[u32], most: usize) -> Proposed {
    PendingDrafts::within(vec![ToDraft { text, own: own.to_vec(), most }], Duration::from_secs(60))
        .drafts()
        .pop()
        .expect("one text")
}

fn forced(text: &GrammarText) -> Vec<u32> {
    let Proposed { tokens, is_forced } = proposed(text, &[], 64);
    assert_eq!(is_forced, !tokens.is_empty());
    tokens
}

fn spelled(tokens: &[u32]) -> String {
    let bytes: Vec<u8> = tokens.iter().flat_map(|&token| text(token)).copied().collect();
    String::from_utf8(bytes).expect("ASCII")
}

/// The expected draft, by definition: the beginning that all words share, as the tokens that the compiler's vocabulary
/// makes of it. It is cut where a longer token that some word continues with could begin.
fn by_words(words: &[&str], so_far: &str) -> String {
    let rest: Vec<&str> = words.iter().filter_map(|word| word.strip_prefix(so_far)).collect();
    let same = |length: &usize| rest.iter().all(|word| word.get(..*length) == rest[0].get(..*length));
    let shortest = rest.iter().map(|word| word.len()).min().expect("a word");
    let forced = &rest[0][..(0..=shortest).take_while(same).last().expect("nothing is the same")];
    let tokens = |text: &str| GRAMMARS.tokens.get().expect("made").spelling.of(text.as_bytes());
    let is_open = |from: &usize| {
        let goes_on = |token: u32| {
            let longer = text(token);
            let whole = [&forced.as_bytes()[..*from], longer].concat();
            from + longer.len() > forced.len()
                && longer.starts_with(&forced.as_bytes()[*from..])
                && rest.iter().any(|word| word.as_bytes().starts_with(&whole))
        };
        (0..VOCAB as u32).any(goes_on)
    };
    let closed = (0..forced.len()).find(is_open).unwrap_or(forced.len());
    let mut kept = String::new();
    for token in tokens(forced) {
        let longer = kept.clone() + &spelled(&[token]);
        if longer.len() > closed {
            break;
        }
        kept = longer;
    }
    kept
}

#[test]
fn what_all_words_go_on_with_is_forced() {
    let words = ["abayes", "abayesno", "ababmay", "noyes{\":1", "noyes{\":2", "maybe", "xyz", "xyzabab"];
    let grammars = [
        grammar(GrammarKind::Regex, r#"abayes(no)?|ababmay|noyes\{":[12]|maybe|xyz(abab)?"#),
        grammar(
            GrammarKind::Lark,
            r#"start: "aba" ("yes" "no"? | "bmay") | "noyes" "{\":" /[12]/ | "may" "be" | "xyz" "abab"?"#,
        ),
    ];
    let mut seen = 0;
    for grammar in grammars {
        for word in words {
            for at in 0..word.len() {
                let so_far = &word[..at];
                let found = forced(&opened(&grammar, &tokens_of(so_far)));
                assert_eq!(spelled(&found), by_words(&words, so_far), "behind {so_far:?}");
                seen += usize::from(found.len() > 1);
            }
            let whole = opened(&grammar, &tokens_of(word));
            assert_eq!(spelled(&forced(&whole)), by_words(&words, word), "behind {word:?}");
        }
    }
    assert!(seen > 10, "{seen} places with more than one token");
}

#[test]
fn keys_of_a_schema_are_forced() {
    let schema = r#"{"type": "object", "properties": {"maybe": {"type": "string"}, "no": {"enum": [true]}},
        "required": ["maybe", "no"], "additionalProperties": false, "x-guidance": {"whitespace_flexible": false}}"#;
    let grammar = grammar(GrammarKind::JsonSchema, schema);
    let at = |so_far: &str| spelled(&forced(&opened(&grammar, &tokens_of(so_far))));
    assert_eq!(at(""), "{\"maybe\":", "the string's quote may be one token with a colon");
    assert_eq!(at("{\"maybe\":\"x"), "");
    assert_eq!(at("{\"maybe\":\"x\""), ",\"no\":true}");
    assert_eq!(at("{\"maybe\":\"x\",\"no\":true}"), "", "it ends there");
    let most = |most: usize| proposed(&opened(&grammar, &[]), &[], most).tokens.len();
    assert_eq!([most(0), most(1), most(2)], [0, 1, 2]);
}

#[test]
fn others_propose_as_far_as_the_grammar_allows() {
    let compiled = compiled(GrammarKind::Regex, "no[a-z]*|yes!");
    let grammar = Arc::new(Grammar::new(compiled, &behind(&[BEGIN]), vec![END]));
    let at = |output: &[u32], own: &[u32]| proposed(&opened(&grammar, output), own, 8);
    let (no, yes) = (tokens_of("nomay"), tokens_of("yes"));
    let own = |tokens: &[u32]| Proposed { tokens: tokens.to_vec(), is_forced: false };
    assert_eq!(at(&[], &no), own(&no), "everything may come before it begins");
    let begins = [&no[..2], &[BEGIN, no[0], UNWRITTEN]].concat();
    assert_eq!(at(&[], &begins), own(&begins[..3]), "no further than its beginning");
    let begun = |so_far: &str| [vec![BEGIN], tokens_of(so_far)].concat();
    assert_eq!(at(&begun(""), &no), own(&no));
    assert_eq!(at(&begun(""), &[&no[..3], &[UNWRITTEN], &no[..]].concat()), own(&no[..3]));
    assert_eq!(at(&begun(""), &[&no[..3], &[END, END]].concat()), own(&no[..3]), "no further than its end");
    assert_eq!(at(&begun(""), &[VOCAB as u32]), own(&[]));
    let (forced, bang) = (at(&begun("y"), &[yes[1]]), tokens_of("!"));
    assert_eq!((spelled(&forced.tokens).as_str(), forced.is_forced), ("es!", true), "longer than its own");
    assert_eq!(forced.tokens.len(), 2, "es is one token");
    assert_eq!(at(&begun("y"), &[yes[1], yes[2], bang[0]]), own(&[yes[1], yes[2], bang[0]]));
    assert_eq!(at(&[&begun("no")[..], &[END]].concat(), &no), Proposed::default(), "it has ended");
}

/// Nothing counts as forced if the text cannot step back, or after a token without a text.
#[test]
fn what_cannot_be_looked_ahead_is_not_forced() {
    let lark = |text: &str| opened(&grammar(GrammarKind::Lark, text), &[]);
    assert!(forced(&lark("start: head \"no\"\nhead[max_tokens=3]: /abx*/\n")).is_empty());
    assert_eq!(spelled(&forced(&lark("start: \"no\" <begin>\n"))), "no");
    assert!(forced(&lark("start: <begin> \"no\"\n")).is_empty());
    assert!(forced(&lark("start: <begin> \"no\" | \"yes\"\n")).is_empty());
}

/// A token that ends the text is no part of it, even where the grammar forces the text that it has.
#[test]
fn a_token_that_ends_the_text_is_not_drafted() {
    let compiled = compiled(GrammarKind::Regex, "nomaybe!");
    let spelling = compiled.tokens.spelling.of(b"nomaybe!");
    assert_eq!(spelling.iter().map(|&token| spelled(&[token])).collect::<Vec<_>>(), ["no", "maybe", "!"]);
    let grammar = Arc::new(Grammar::new(compiled, &GrammarStart::default(), vec![END, spelling[1]]));
    let text = opened(&grammar, &[]);
    assert_eq!(proposed(&text, &[], 8), Proposed { tokens: spelling[..1].to_vec(), is_forced: true });
    assert_eq!(proposed(&text, &spelling, 8), Proposed { tokens: spelling[..1].to_vec(), is_forced: false });
}

/// If a row is shorter than the vocabulary, tokens beyond its end must not be drafted.
#[test]
fn what_a_row_does_not_have_is_not_drafted() {
    let grammar = grammar(GrammarKind::Regex, "nomaybe!");
    let shorter = GrammarText::open(grammar, &Arc::default(), VOCAB - 10, &[]).expect("it matches");
    let tokens = proposed(&shorter, &[], 8).tokens;
    assert_eq!(spelled(&tokens), "no", "may, be and maybe are behind its end");
    assert!(tokens.iter().all(|&token| (token as usize) < VOCAB - 10));
}

/// Looking ahead stops far from the limits that would end a text, or the text is read again. Reading it again meets no
/// limit that writing it did not.
#[test]
fn drafts_that_nobody_verifies_end_no_text() {
    // Long tokens of a and b, so that a mask looks at many states.
    let words = |length: u32| {
        let letter = move |word: u32| (0..length).map(|at| b'a' + (word >> at & 1) as u8).collect();
        (0..1 << length).map(move |word| Some(letter(word)))
    };
    let mut texts: Vec<Option<Vec<u8>>> = (0..=255).map(|byte| Some(vec![byte])).collect();
    texts.extend(["xyz".to_owned(), "a".repeat(100)].map(|text| Some(text.into_bytes())));
    texts.extend((2..=10).flat_map(words));
    let (xyz, long) = (256, 257);
    let grammars = Grammars::new(Arc::new(Vocabulary::new(&texts, b"")));
    let bytes = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
    let dear = |at: usize| format!("(a{{{}}})+[{}]", 307 + 4 * at, char::from(b'b' + at as u8 % 20));
    let dear = |count: usize| (0..count).map(dear).collect::<Vec<_>>().join("|");
    let rough: String = (0..60).map(|at| if 0x9E37_79B9_7F4A_7C15_u64 >> at & 1 == 1 { 'a' } else { 'b' }).collect();
    let (xy, many) = (bytes(&"xy".repeat(15)), vec![long; 14]);
    let heavy = [
        // The draft reaches ever more states, which the text itself never reaches.
        ("(xy)*(xyz[ab]*a[ab]{18}c|xyd)".to_owned(), xy.clone(), bytes(&format!("xyz{rough}"))),
        // Costly steps, and each next byte is forced.
        (dear(300), bytes(&"a".repeat(30)), bytes(&"a".repeat(60))),
        // The same in long tokens.
        (dear(160), many.clone(), many),
        // One step of the draft costs too much.
        (format!("(xy)*(xyz({})|xyd)", dear(300)), xy, vec![xyz, long, long]),
    ];
    for (pattern, output, draft) in heavy {
        let compiled = grammars
            .compile(&params(GrammarKind::Regex, &pattern), &room(), &CompileDeadline::default())
            .expect("it is right");
        let grammar = Arc::new(Grammar::new(compiled, &GrammarStart::default(), vec![0]));
        let text = |output: &[u32]| {
            GrammarText::open(Arc::clone(&grammar), &Arc::default(), texts.len(), output).expect("it matches")
        };
        let asked = |text: &GrammarText| {
            Pending::begin(vec![Wanted::new(text, Ahead::default())]).masks().pop().expect("one text")
        };
        // Its turn may not come at once on a busy machine.
        let mask = |text: &GrammarText| {
            let mut tries = (0..30).map(|_| asked(text)).skip_while(|found| *found == Err(MaskError::NotYet));
            tries.next().unwrap_or(Err(MaskError::NotYet))
        };
        let (mut plain, mut drafting) = (text(&[]), text(&[]));
        for (at, &token) in output.iter().enumerate() {
            for text in [&mut plain, &mut drafting] {
                text.push(token);
            }
            drop(proposed(&drafting, &draft, 64));
            drafting.work_ahead(&draft);
            if at + 3 > output.len() {
                // A batch that waits ends the work as well.
                std::thread::sleep(Duration::from_millis(150));
            }
            let expected = mask(&plain);
            assert!(expected.is_ok(), "{pattern:.40}: {expected:?}");
            assert!(mask(&drafting) == expected, "{pattern:.40} at {at}: {:?}", mask(&drafting).err());
        }
        assert!(mask(&text(&output)) == mask(&plain), "{pattern:.40}, opened again");
    }
}

/// However much is forced, no more is examined than may be proposed.
#[test]
fn what_is_forced_without_end_is_cut() {
    let text = opened(&grammar(GrammarKind::Lark, "start: a\na: \"ab\" \"x\" a\n"), &[]);
    assert_eq!(proposed(&text, &[], 3).tokens.len(), 3);
    let long = opened(&grammar(GrammarKind::Regex, &"abc".repeat(5_000)), &[]);
    assert_eq!(spelled(&proposed(&long, &[], 4).tokens), "abcabc");
}
