//! The resources that grammars may use, and what happens to grammars that need more.

use super::super::mask_error::MaskError;
use super::busy::while_busy;
use super::*;
use std::time::{Duration, Instant};

/// Rules nested as deep as a grammar's length allows, and other costly texts.
#[test]
fn the_largest_grammars_are_compiled_or_refused() {
    let most = crate::params::grammar::MAX_GRAMMAR_BYTES;
    let until_full = |head: &str, one: &dyn Fn(usize) -> String, tail: &dyn Fn(usize) -> String| {
        let (mut text, mut i) = (head.to_owned(), 0);
        while text.len() + one(i).len() + tail(i + 1).len() <= most {
            text += &one(i);
            i += 1;
        }
        text + &tail(i)
    };
    let texts = [
        (
            GrammarKind::Lark,
            until_full("start: a0\n", &|i| format!("a{i}: a{}\n", i + 1), &|i| format!("a{i}: \"b\"\n")),
        ),
        (
            GrammarKind::Lark,
            until_full("start: A0\n", &|i| format!("A{i}: A{}\n", i + 1), &|i| format!("A{i}: \"b\"\n")),
        ),
        (GrammarKind::Lark, until_full("start: ", &|_| "(".to_owned(), &|_| "\"b\"".to_owned())),
        (GrammarKind::Regex, until_full("", &|_| "(".to_owned(), &|i| format!("b{}", ")".repeat(i)))),
        (GrammarKind::Regex, until_full("", &|i| format!("w{i}|"), &|_| "x".to_owned())),
        (
            GrammarKind::Regex,
            until_full("", &|i| if i < 2048 { "a?".to_owned() } else { "b".to_owned() }, &|_| "b".to_owned()),
        ),
        (
            GrammarKind::Lark,
            until_full("start: S\nS: %regex { \"substring_chars\": \"", &|_| "ab".to_owned(), &|_| "\" }\n".to_owned()),
        ),
        (
            GrammarKind::JsonSchema,
            until_full(
                r##"{"$ref":"#/$defs/0","$defs":{"##,
                &|i| format!(r##""{i}":{{"$ref":"#/$defs/{}"}},"##, i + 1),
                &|i| format!(r#""{i}":{{}}}}}}"#),
            ),
        ),
        (
            GrammarKind::Gbnf,
            until_full("root ::= a0\n", &|i| format!("a{i}::=a{}\n", i + 1), &|i| format!("a{i} ::= \"b\"\n")),
        ),
        // Each rule is twice as long as the one before, and none is regular as a whole.
        (
            GrammarKind::Gbnf,
            until_full(
                "root ::= a0 root? \"x\"\n",
                &|i| format!("a{i}::=[a-z]{} a{} a{}\n", if i < 1000 { "+" } else { "" }, i + 1, i + 1),
                &|i| format!("a{i} ::= [a-z]* \"b\"\n"),
            ),
        ),
        // Terminals with equal beginnings, which get in each other's way.
        (
            GrammarKind::Gbnf,
            until_full(
                "root ::= \"x\"",
                &|i| if i < 1000 { format!("|root \"ab{i}\"") } else { "  ".to_owned() },
                &|_| "|[ab]+ root\n".to_owned(),
            ),
        ),
        (
            GrammarKind::Gbnf,
            until_full(
                "root ::= ",
                &|i| if i < 1000 { "\"a\"? root? ".to_owned() } else { "\"b\"".to_owned() },
                &|_| "\n".to_owned(),
            ),
        ),
        (GrammarKind::Gbnf, until_full("root ::= \"", &|_| "ab".to_owned(), &|_| "\"".to_owned())),
        (GrammarKind::Choices, until_full("", &|i| format!("w{i}\n"), &|_| "x".to_owned())),
        (
            GrammarKind::JsonSchema,
            until_full("", &|_| r#"{"items":"#.to_owned(), &|i| format!("{{}}{}", "}".repeat(i))),
        ),
    ];
    for (kind, text) in texts {
        let started = Instant::now();
        assert_eq!(params(kind, &text).validate(VOCAB as u32), Ok(()), "what is refused for its length is no test");
        let compiled = GRAMMARS.compile(&params(kind, &text), &room(), &CompileDeadline::default());
        eprintln!(
            "{kind:?} of {} bytes: {} in {:?}",
            text.len(),
            if compiled.is_ok() { "compiled" } else { "refused" },
            started.elapsed()
        );
        match compiled {
            Ok(compiled) => {
                let grammar = Arc::new(Grammar::new(compiled, &GrammarStart::default(), vec![END]));
                let first = wanted(&opened(&grammar, &[]), Ahead::default());
                assert!(
                    matches!(first, Ok(_) | Err(MaskError::TooComplex(_) | MaskError::NotYet)),
                    "{kind:?}: {first:?}"
                );
            }
            // It is not refused for lack of room or of a turn: there is enough of both.
            Err(error) => assert!(matches!(error, CompileError::Invalid(_)), "{kind:?}: {error:?}"),
        }
    }
}

/// A grammar whose masks take seconds. Compiling it takes one or two seconds of a processor. How long it waits for them
/// on a busy machine is no part of these tests, so it is compiled without limits.
fn slow() -> Arc<Grammar> {
    let (params, never) = (params(GrammarKind::Regex, &"a?".repeat(9_000)), Duration::MAX);
    let tokens = GRAMMARS.tokens(params.kind).expect("threads");
    let compiled = compile::compile_within(&params, tokens, tokens.compiling.take(), never, never);
    Arc::new(Grammar::new(Arc::new(compiled.expect("it is right")), &GrammarStart::default(), vec![END]))
}

/// The parameters do not allow such a grammar. A text whose masks take seconds fails for good, and others do not wait
/// for it.
#[test]
fn a_grammar_that_takes_long_fails_alone() {
    let refused = params(GrammarKind::Regex, &"a?".repeat(9_000));
    assert_eq!(refused.validate(VOCAB as u32).expect_err("it is too large").field, "regex");
    let slow = slow();
    let fine = opened(&grammar(GrammarKind::Regex, "no"), &[]);
    let started = Instant::now();
    let late = opened(&slow, &tokens_of("a"));
    let found =
        Pending::begin(vec![Wanted::new(&late, Ahead::default()), Wanted::new(&fine, Ahead::default())]).masks();
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    assert_eq!(found[0], Err(MaskError::too_long()));
    assert!(found[1].is_ok());
    assert_eq!(wanted(&late, Ahead::default()), Err(MaskError::too_long()), "it stays so");
    assert_eq!(allowed(&fine).len(), 2);
}

/// All threads of grammars are busy with texts that nobody waits for. Whoever waits for another text ends them.
#[test]
fn slow_texts_that_nobody_waits_for_do_not_keep_the_threads() {
    let slow = slow();
    let fine = grammar(GrammarKind::Regex, "no");
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(4);
    let idle: Vec<GrammarText> = (0..threads).map(|_| opened(&slow, &tokens_of("a"))).collect();
    // Other tests' texts come first, and whoever waits for these may end the idle ones.
    while !idle.iter().all(|text| text.place().is_worked_on() || text.place().is_cancelled()) {
        std::thread::yield_now();
    }
    let fine = opened(&fine, &[]);
    // Its turn may not come at once on a busy machine.
    let tries = (0..10).map(|_| wanted(&fine, Ahead::default()));
    assert!(tries.take_while(Result::is_err).all(|result| result == Err(MaskError::NotYet)));
    assert!(wanted(&fine, Ahead::default()).is_ok());
    assert!(idle.iter().any(|text| text.place().is_cancelled()), "nobody saw to it");
}

/// Of two texts of one grammar, the one that comes to a costly place fails, and the other goes on.
#[test]
fn a_text_that_reaches_a_limit_harms_no_other_of_its_grammar() {
    let alone = "a".repeat(40);
    let grammar = grammar(
        GrammarKind::Lark,
        "start: s\ns: s s | s s s | s s s s | s s s s s | s s s s s s | s s s s s s s | \"a\" | \"b\"\n",
    );
    let (mut greedy, other) = (opened(&grammar, &[]), opened(&grammar, &tokens_of("ab")));
    let failed = alone.bytes().cycle().take(4000).find_map(|byte| {
        greedy.push(5 + u32::from(byte));
        waited(&greedy).err()
    });
    assert!(matches!(failed, Some(MaskError::TooComplex(_))), "{failed:?}");
    assert!(wanted(&greedy, Ahead::default()).is_err(), "it stays so");
    let fresh = opened(&grammar, &[]);
    assert!(allowed(&other).len() > 3 && allowed(&fresh).len() > 1);
}

/// If many patterns have to hold at once, nothing is compiled. Whatever is compiled is compiled in time.
#[test]
fn products_of_patterns_are_refused() {
    let schema = |count: usize| {
        let patterns =
            (0..count).map(|i| format!(r#"{{"type":"string","pattern":"a.{{{}}}b"}}"#, i + 3)).collect::<Vec<_>>();
        format!(r#"{{"allOf":[{}]}}"#, patterns.join(","))
    };
    let started = Instant::now();
    let refused = |kind, text: &str| {
        GRAMMARS.compile(&params(kind, text), &room(), &CompileDeadline::default()).expect_err("it is too much")
    };
    assert!(matches!(refused(GrammarKind::JsonSchema, &schema(57)), CompileError::Invalid(_)));
    let lark = (0..13).map(|i| format!("/(.*a.{{{i}}}b)/")).collect::<Vec<_>>().join(" & ");
    assert!(matches!(refused(GrammarKind::Lark, &format!("start: A\nA: {lark}\n")), CompileError::Invalid(_)));
    drop(GRAMMARS.compile(&params(GrammarKind::JsonSchema, &schema(8)), &room(), &CompileDeadline::default()));
    eprintln!("{:?}", started.elapsed());
}

/// Several grammars are compiled at a time, and each only once, whoever asks for it meanwhile.
#[test]
fn a_grammar_is_compiled_once_and_waits_for_no_other() {
    let vocabulary = Vocabulary::new(&[Some(b"a".to_vec()), Some(b"b".to_vec())], b"");
    let (grammars, room) = (Grammars::new(Arc::new(vocabulary)), room());
    let [slow, right, wrong] = [&*"a?".repeat(20_000), "[ab]{9}", "(a"].map(|text| params(GrammarKind::Regex, text));
    std::thread::scope(|scope| {
        let late = scope.spawn(|| grammars.compile(&slow, &room, &CompileDeadline::default()));
        while lock(&grammars.table).compiling.is_empty() {
            std::thread::yield_now();
        }
        let asked = |params| {
            let (grammars, room) = (&grammars, &room);
            let all: Vec<_> = (0..8)
                .map(|_| scope.spawn(move || grammars.compile(params, room, &CompileDeadline::default())))
                .collect();
            all.into_iter().map(|one| one.join().expect("no panic")).collect::<Vec<_>>()
        };
        let same: Vec<_> = asked(&right).into_iter().map(|one| one.expect("it is right")).collect();
        assert!(same.iter().all(|other| Arc::ptr_eq(other, &same[0])));
        assert!(asked(&wrong).iter().all(|wrong| matches!(wrong, Err(CompileError::Invalid(_)))));
        let refused = lock(&grammars.table).refused.iter().map(|refused| refused.key.1.clone()).collect::<Vec<_>>();
        assert_eq!(refused, ["(a"], "one of the eight compiled it");
        assert!(!late.is_finished(), "they waited for it");
        // If it is compiled in time, it is right. On a busy machine it may not get its time.
        assert!(matches!(late.join().expect("no panic"), Ok(_) | Err(CompileError::Invalid(_) | CompileError::Busy)));
    });
    assert!(lock(&grammars.table).compiling.is_empty());
}

#[test]
fn as_many_grammars_are_compiled_at_once_as_may_be() {
    let vocabulary = Vocabulary::new(&[Some(b"a".to_vec())], b"");
    let tokens = Tokens::new(&vocabulary).expect("a vocabulary");
    let taken: Vec<_> = (0..9).filter_map(|_| tokens.compiling.take_until(Instant::now())).collect();
    assert_eq!(taken.len(), MAX_COMPILING);
}

/// A message keeps its room while it waits, for however many grammars.
#[test]
fn a_message_that_has_waited_long_begins_no_other_grammar() {
    let vocabulary = Vocabulary::new(&[Some(b"a".to_vec()), Some(b"b".to_vec())], b"");
    let (grammars, room) = (Grammars::new(Arc::new(vocabulary)), room());
    let asked = |text, compile_deadline: &CompileDeadline| {
        grammars.compile(&params(GrammarKind::Regex, text), &room, compile_deadline)
    };
    let (compile_deadline, late) = (CompileDeadline::default(), CompileDeadline::over());
    let first = asked("a", &compile_deadline).expect("it is right");
    let until = compile_deadline.until();
    assert!(
        asked("a{2}", &compile_deadline).is_ok() && compile_deadline.until() == until,
        "time begins with the first one"
    );
    assert_eq!(asked("a{3}", &late).expect_err("it is too late"), CompileError::Busy);
    assert!(lock(&grammars.table).compiling.is_empty());
    assert!(Arc::ptr_eq(&first, &asked("a", &late).expect("it is there")));
    for compile_deadline in [CompileDeadline::default(), late] {
        assert!(matches!(asked("(", &compile_deadline), Err(CompileError::Invalid(_))), "what is wrong is known");
    }
    assert!(asked("a{3}", &CompileDeadline::default()).is_ok(), "it may come again");
}

#[test]
fn grammars_are_kept_within_their_room() {
    let vocabulary = Vocabulary::new(&[Some(b"a".to_vec()), Some(b"b".to_vec())], b"");
    let grammars = Arc::new(Grammars::new(Arc::new(vocabulary)));
    let room = Counter::new(20 << 20, Gauge::noop());
    grammars.give_way_in(&room);
    let asked = |i: usize| {
        grammars.compile(&params(GrammarKind::Regex, &format!("a{{{}}}", i + 1)), &room, &CompileDeadline::default())
    };
    let first = asked(0).expect("there is room");
    let one = room.used();
    assert!(one > 0 && Arc::ptr_eq(&first, &asked(0).expect("it is there")), "the same is compiled once");
    for i in 1..=MAX_RECENT + 8 {
        drop(asked(i).expect("those that nobody has make room"));
    }
    let there = |table: &GrammarTable| table.all.values().filter(|known| known.strong_count() > 0).count();
    assert!(lock(&grammars.table).recent.len() <= MAX_RECENT);
    assert!(there(&lock(&grammars.table)) <= MAX_RECENT + 1 && room.used() < (MAX_RECENT + 2) * 2 * one);
    assert!(Arc::ptr_eq(&first, &asked(0).expect("it is there")), "what somebody has is not compiled again");
    let mut used = vec![first];
    let full = loop {
        match asked(used.len()) {
            Ok(compiled) => used.push(compiled),
            Err(error) => break error,
        }
        assert!(used.len() < 1000, "no end");
    };
    assert!(matches!(full, CompileError::NoRoom(bytes) if bytes > 0 && bytes < 20 << 20), "{full:?}");
    assert!(used.len() > 10 && room.used() <= 20 << 20);
    used.truncate(5);
    assert!(asked(2000).is_ok(), "there is room again");
}

#[test]
fn a_grammar_that_nobody_uses_makes_room_for_others() {
    let vocabulary = Vocabulary::new(&[Some(b"a".to_vec()), Some(b"b".to_vec())], b"");
    let grammars = Arc::new(Grammars::new(Arc::new(vocabulary)));
    let room = Counter::new(20 << 20, Gauge::noop());
    grammars.give_way_in(&room);
    let asked = |i: usize| {
        grammars.compile(&params(GrammarKind::Regex, &format!("a{{{i}}}")), &room, &CompileDeadline::default())
    };
    let mine = asked(1).expect("there is room");
    let one = room.used();
    drop(asked(2).expect("there is room"));
    let second = room.used() - one;
    (3..11).for_each(|i| drop(asked(i).expect("there is room")));
    let all = room.used();
    assert!(all > 9 * one, "they are kept");
    assert!(room.take(room.limit() - all + second).is_some() && room.used() == all - second, "no more than is needed");
    let (kept, most) = (room.used(), room.limit() - one);
    assert!(room.take(most + 1).is_none(), "what somebody has stays");
    assert_eq!(room.used(), kept, "and where that would not do, all stay");
    assert!(room.take(most).is_some() && room.used() == one, "all others went");
    assert!(Arc::ptr_eq(&mine, &asked(1).expect("it is there")));
}

/// Automata that gave up their room are not found again, even while no thread has dropped them yet.
#[test]
fn what_gave_its_room_up_is_not_found_again() {
    let vocabulary = Vocabulary::new(&[Some(b"a".to_vec()), Some(b"b".to_vec())], b"");
    let grammars = Arc::new(Grammars::new(Arc::new(vocabulary)));
    let room = Counter::new(20 << 20, Gauge::noop());
    grammars.give_way_in(&room);
    let asked = || {
        grammars
            .compile(&params(GrammarKind::Regex, "a{9}"), &room, &CompileDeadline::default())
            .expect("there is room")
    };
    drop(asked());
    let one = room.used();
    while_busy(&grammars, || {
        assert!(room.take(room.limit()).is_some() && room.used() == 0, "it gives way");
        let _again = asked();
        assert_eq!(room.used(), one, "what is in use is counted");
    });
}

/// Parts that may be repeated often, and conditions, take far more memory than their text. The counted bytes are at
/// least those that were measured with the allocator.
#[test]
fn a_grammar_is_counted_by_what_it_holds() {
    let many = |one: &dyn Fn(usize) -> String, between: &str| (0..100).map(one).collect::<Vec<_>>().join(between);
    let often = |i: usize| format!("\"a\"{{3,{}}}", 2_000_000_000 - i);
    let long = |i: usize| format!(r#"{{"items":{{"type":"null"}},"minItems":3,"maxItems":{}}}"#, 2_000_000_000 - i);
    let chosen = |rest: String, i: usize| format!("and(or(bit_set({}),bit_set({})),{rest})", 2 * i, 2 * i + 1);
    let chosen = (0..12).fold("true".to_owned(), chosen);
    let grammars = [
        (GrammarKind::Lark, format!("start: {}\n", many(&often, " ")), 15_492_736),
        (GrammarKind::JsonSchema, format!(r#"{{"prefixItems":[{}]}}"#, many(&long, ",")), 15_630_720),
        (GrammarKind::Lark, format!("start: a::0\na::_: \"\" %if {chosen}\n  | \"b\" a::incr(_)\n"), 5_988_672),
    ];
    for (kind, text, held) in grammars {
        let counted = compiled(kind, &text).counted();
        assert!((held..2 * held).contains(&counted), "{kind:?} of {} bytes: {counted}", text.len());
    }
}

/// The bytes that a text is counted as grow with its length, and with the grammar's items at each place.
#[test]
fn a_text_is_counted_by_its_length_and_its_grammars_items() {
    let grown = |kind, text: &str, word: &str| {
        let grammar = grammar(kind, text);
        let mut text = opened(&grammar, &[]);
        let before = text.bytes();
        tokens_of(word).into_iter().for_each(|token| text.push(token));
        assert!(text.bytes_after(1, 0) > text.bytes());
        drop(waited(&text));
        text.bytes() - before
    };
    let plain =
        grown(GrammarKind::JsonSchema, r#"{"type": "array", "items": {"type": "integer"}}"#, "[1,2,3,4,5,6,7,8");
    let ambiguous = grown(GrammarKind::Lark, "start: s\ns: s s | \"a\"\n", "aaaaaaaaaaaaaaaa");
    assert!(plain > 16 * 96 && ambiguous > 16 * 500, "{plain} {ambiguous}");
}

/// The same for a text whose grammar has many terminals, since each state of its lexer has them all.
#[test]
fn a_text_is_counted_by_what_its_lexer_holds() {
    let words = |count: usize| (0..count).map(|i| format!("{i:x}")).collect::<Vec<_>>();
    let rule = |between: &str, count| format!("start: \"{}\"\n", words(count).join(between));
    let choices = grammar(GrammarKind::Lark, &rule("\"|\"", 4000));
    let sequence = grammar(GrammarKind::Lark, &rule("\" \"", 1000));
    let texts = [(opened(&choices, &[]), 1_441_200), (opened(&sequence, &tokens_of(&words(1000).concat())), 2_188_752)];
    for (text, held) in texts {
        assert!((held..2 * held).contains(&text.bytes()), "{} where {held} are held", text.bytes());
    }
}
