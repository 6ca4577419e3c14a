//! What structured output costs over a made-up vocabulary of 128,256 tokens: compiling a grammar, the mask of one
//! position, and the masks of a batch of 64 texts, both with masks that are ready and with masks that have to be
//! computed. Then: which tokens a grammar forces, and the masks of the drafts made from them.
//!
//!     cargo bench --bench grammars
//!
//! Times are in microseconds unless stated otherwise, on threads of the present machine.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use croupier::grammar::fill::{Pending, Wanted};
use croupier::grammar::propose::{PendingDrafts, ToDraft};
use croupier::grammar::{Ahead, CompileDeadline, Grammar, GrammarText, Grammars};
use croupier::params::grammar::{GrammarKind, GrammarParams, GrammarStart};
use croupier::permits::Counter;
use croupier::sampling::mask::TokenMask;
use croupier::vocabulary::Vocabulary;
use metrics::Gauge;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

const VOCAB: usize = 128_256;
const END: u32 = 0;
const BATCH: usize = 64;
/// Pause in which masks can be computed ahead.
const PAUSE: Duration = Duration::from_millis(60);

struct Job {
    name: &'static str,
    kind: GrammarKind,
    grammar: &'static str,
    text: &'static str,
}

const JOBS: [Job; 5] = [
    Job {
        name: "JSON schema, five fields",
        kind: GrammarKind::JsonSchema,
        grammar: r#"{"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0,"maximum":150},"tags":{"type":"array","items":{"type":"string"}},
            "email":{"type":"string","format":"email"},"kind":{"enum":["a","b","c"]}},"required":["name","age","tags","email","kind"],"additionalProperties":false}"#,
        text: r#"{"name": "Tenari Lodac", "age": 42, "tags": ["one", "two three"], "email": "a@b.com", "kind": "b"}"#,
    },
    Job {
        name: "the same without white space",
        kind: GrammarKind::JsonSchema,
        grammar: r#"{"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0,"maximum":150},"tags":{"type":"array","items":{"type":"string"}},
            "email":{"type":"string","format":"email"},"kind":{"enum":["a","b","c"]}},"required":["name","age","tags","email","kind"],"additionalProperties":false,
            "x-guidance":{"whitespace_flexible":false}}"#,
        text: r#"{"name":"Tenari Lodac","age":42,"tags":["one","two three"],"email":"a@b.com","kind":"b"}"#,
    },
    Job {
        name: "any JSON",
        kind: GrammarKind::JsonSchema,
        grammar: "{}",
        text: r#"{"rows": [1, 2.5, -3e4, {"deep": [true, false, null]}], "words": "some of them are longer than others"}"#,
    },
    Job {
        name: "a date or a time, regex",
        kind: GrammarKind::Regex,
        grammar: r"\d{4}-\d{2}-\d{2}|\d{1,2}:\d{2}( [ap]m)?",
        text: "2026-11-26",
    },
    Job {
        name: "sums, Lark",
        kind: GrammarKind::Lark,
        grammar: "start: sum\nsum: product (/ ?[+-] ?/ product)*\nproduct: atom (/ ?[*\\/] ?/ atom)*\natom: /[0-9]+(\\.[0-9]+)?/ | \"(\" sum \")\"\n",
        text: "(1 + 22) * 333 - (4.5 / (6 + 7)) * 8 + 99999",
    },
];

/// Most tokens of a draft.
const DRAFT: usize = 8;

/// A vocabulary of single bytes, and of words of letters, digits and punctuation as a tokenizer has them.
fn vocabulary() -> Vocabulary {
    let mut words: Vec<Vec<u8>> = vec![b"".to_vec()];
    words.extend((0..=255).map(|byte| vec![byte]));
    let mut seen: HashSet<Vec<u8>> = words.iter().cloned().collect();
    let mut state = 12_345_u64;
    let mut draw = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    while words.len() < VOCAB {
        let mut word = Vec::new();
        match draw(10) {
            0 => (0..1 + draw(3)).for_each(|_| word.push(b'0' + draw(10) as u8)),
            1 => (0..2 + draw(3)).for_each(|_| word.push(b"{}[]\":,.!?-_()/\\ \n\t"[draw(19)])),
            _ => {
                word.extend(b" ".iter().take(draw(2)));
                for _ in 0..1 + draw(4) {
                    word.extend([b"tnrslcdmpbgfhvkwzxjq"[draw(20)], b"eaiouy"[draw(6)]]);
                    word.extend(b"s".iter().take(draw(3) / 2));
                }
            }
        }
        if seen.insert(word.clone()) {
            words.push(word);
        }
    }
    Vocabulary::new(&words.into_iter().map(Some).collect::<Vec<_>>(), b"")
}

/// Tokenizes a text greedily: always the longest token.
fn tokens(vocabulary: &Vocabulary, mut text: &[u8]) -> Vec<u32> {
    let mut tokens = Vec::new();
    while !text.is_empty() {
        let begins = |token: &u32| !vocabulary.text(*token).is_empty() && text.starts_with(vocabulary.text(*token));
        let token = (0..VOCAB as u32).filter(begins).max_by_key(|&token| vocabulary.text(token).len()).unwrap();
        text = &text[vocabulary.text(token).len()..];
        tokens.push(token);
    }
    tokens
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

fn quantile(times: &mut [f64], share: f64) -> f64 {
    times.sort_by(f64::total_cmp);
    times[((times.len() - 1) as f64 * share).round() as usize]
}

fn wanted(texts: &[GrammarText]) -> Vec<Wanted> {
    texts.iter().map(|text| Wanted::new(text, Ahead::default())).collect()
}

fn main() {
    let vocabulary = Arc::new(vocabulary());
    let (grammars, room) = (Grammars::new(Arc::clone(&vocabulary)), Counter::new(usize::MAX, Gauge::noop()));
    let start = GrammarStart::default;
    let params = |kind, text: &str| GrammarParams { kind, text: text.to_owned(), start: start() };
    let compiled =
        |job: &Job| grammars.compile(&params(job.kind, job.grammar), &room, &CompileDeadline::default()).unwrap();
    let started = Instant::now();
    grammars.compile(&params(GrammarKind::Regex, "a"), &room, &CompileDeadline::default()).unwrap();
    println!(
        "the vocabulary, once: {:.0} ms, {} KiB with a first grammar\n",
        micros(started.elapsed()) / 1e3,
        room.used() >> 10
    );
    println!(
        "| grammar | compile | tokens | allowed, median | mask p50 | p99 | worst | {BATCH} masks, there | to be worked out |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for job in &JOBS {
        let started = Instant::now();
        let compiled = compiled(job);
        let compile = micros(started.elapsed());
        let grammar = Arc::new(Grammar::new(compiled, &GrammarStart::default(), vec![END]));
        let tokens = tokens(&vocabulary, job.text.as_bytes());
        let opened = |output: &[u32]| GrammarText::open(Arc::clone(&grammar), &Arc::default(), VOCAB, output).unwrap();
        let (mut times, mut left) = (Vec::new(), Vec::new());
        // The second round has known states, as all but the first texts of a grammar do.
        for round in 0..2 {
            for at in 0..tokens.len() {
                let text = [opened(&tokens[..at])];
                let started = Instant::now();
                let found = Pending::begin(wanted(&text)).masks().pop().unwrap().unwrap();
                if round > 0 {
                    times.push(micros(started.elapsed()));
                    left.push(TokenMask::new(found[0].as_ref().unwrap(), VOCAB).count() as f64);
                }
            }
        }
        let mut texts: Vec<GrammarText> = (0..BATCH).map(|_| opened(&[])).collect();
        let (mut there, mut worked_out) = (Vec::new(), Vec::new());
        for token in tokens.iter().take(20) {
            std::thread::sleep(PAUSE);
            let started = Instant::now();
            drop(Pending::begin(wanted(&texts)).masks());
            there.push(micros(started.elapsed()));
            texts.iter_mut().for_each(|text| text.push(*token));
            let started = Instant::now();
            drop(Pending::begin(wanted(&texts)).masks());
            worked_out.push(micros(started.elapsed()));
        }
        println!(
            "| {} | {:.1} ms | {} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} |",
            job.name,
            compile / 1e3,
            tokens.len(),
            quantile(&mut left, 0.5),
            quantile(&mut times, 0.5),
            quantile(&mut times, 0.99),
            quantile(&mut times, 1.0),
            quantile(&mut there, 0.5),
            quantile(&mut worked_out, 0.5)
        );
    }
    println!(
        "\n| grammar | {BATCH} drafts | worst | forced tokens of all | {BATCH} drafts' masks, there | to be worked out |"
    );
    println!("|---|---|---|---|---|---|");
    for job in &JOBS {
        let grammar = Arc::new(Grammar::new(compiled(job), &GrammarStart::default(), vec![END]));
        drafts(job.name, &grammar, &tokens(&vocabulary, job.text.as_bytes()));
    }
}

/// Writes a text token by token. After each token, a draft is made and verified.
fn drafts(name: &str, grammar: &Arc<Grammar>, tokens: &[u32]) {
    let flow = Arc::default();
    let mut texts: Vec<GrammarText> =
        (0..BATCH).map(|_| GrammarText::open(Arc::clone(grammar), &flow, VOCAB, &[]).unwrap()).collect();
    let (mut drafted, mut there, mut worked_out) = (Vec::new(), Vec::new(), Vec::new());
    let mut forced = 0;
    for (at, token) in tokens.iter().enumerate() {
        texts.iter_mut().for_each(|text| text.push(*token));
        let asked = texts.iter().map(|text| ToDraft { text, own: vec![], most: DRAFT }).collect();
        let started = Instant::now();
        let draft = PendingDrafts::begin(asked).drafts().pop().unwrap().tokens;
        drafted.push(micros(started.elapsed()));
        forced += usize::from(tokens.get(at + 1).is_some_and(|next| draft.first() == Some(next)));
        if draft.is_empty() {
            continue;
        }
        let asked = texts.iter().map(|text| Wanted::new(text, Ahead::chain(draft.clone()))).collect();
        let started = Instant::now();
        drop(Pending::begin(asked).masks());
        worked_out.push(micros(started.elapsed()));
        texts.iter_mut().for_each(|text| text.work_ahead(&draft));
        std::thread::sleep(PAUSE);
        let asked = texts.iter().map(|text| Wanted::new(text, Ahead::chain(draft.clone()))).collect();
        let started = Instant::now();
        drop(Pending::begin(asked).masks());
        there.push(micros(started.elapsed()));
    }
    if there.is_empty() {
        (there, worked_out) = (vec![f64::NAN], vec![f64::NAN]);
    }
    println!(
        "| {name} | {:.0} | {:.0} | {forced} of {} | {:.0} | {:.0} |",
        quantile(&mut drafted, 0.5),
        quantile(&mut drafted, 1.0),
        tokens.len(),
        quantile(&mut there, 0.5),
        quantile(&mut worked_out, 0.5)
    );
}
