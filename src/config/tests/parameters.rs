//! What a file may contain about sampling parameters: nearly all of them, with all of their parts.

use super::*;
use crate::params::SUPPORTED;
use crate::params::acceptance::{AcceptanceRule, Relaxed, Synthetic, Typical};
use crate::params::grammar::{GrammarKind, GrammarParams, GrammarStart};
use crate::params::presets::Presets;
use crate::params::report::ReportParams;
use crate::params::steering::{
    LengthPenalty, NoRepeatNgram, RepetitionDetection, SequenceBias, ThinkingBudget, TokenBanRange,
};
use crate::params::watermark::{GumbelParams, KgwParams, SeedingScheme, SynthidParams, Watermark};
use crate::params::{DraftLengthParams, LogprobsMode, LogprobsParams, ProposerKind, ProposerParams, ThinkingFilters};
use std::collections::BTreeSet;
use toml::{Table, Value};

const EVERY: &str = include_str!("every_parameter.toml");
const SCHEMA: &str = include_str!("../../../proto/croupier/v1/sampler.proto");

fn every() -> Presets {
    let (_dir, path) = file(EVERY);
    config(&["--presets", &path, "--grammars=true", "--vocabulary", TEXTS], &[]).presets
}

fn preset(name: &str) -> SamplingParams {
    let mut params = SamplingParams::default();
    every().get(name).expect("it is there").apply(&mut params);
    params
}

/// Fields of a message of the schema.
fn fields(message: &str) -> BTreeSet<String> {
    let body = SCHEMA.split_once(&format!("\nmessage {message} {{\n")).expect("the message").1;
    let body = body.split_once("\n}\n").expect("its end").0;
    let fields = body.lines().filter_map(|line| line.trim().strip_suffix(';')?.split_once(" = "));
    fields.filter_map(|(field, _)| Some(field.rsplit_once(' ')?.1.to_owned())).collect()
}

/// Keys of the tables at these keys in any preset, including tables in lists.
fn parts(keys: &[&str]) -> BTreeSet<String> {
    let all: Table = EVERY.parse().expect("TOML");
    let found = all.values().filter_map(|preset| keys.iter().try_fold(preset, |value, key| value.get(key)));
    let entries = found.flat_map(|value| value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]));
    entries.filter_map(|value| Some(value.as_table()?.keys().cloned().collect::<Vec<_>>())).flatten().collect()
}

#[test]
fn a_file_can_say_all_that_is_supported_or_says_why_not() {
    let never = defaults::NEVER.iter().map(|(key, _)| *key);
    // A key that is refused by name need not be a parameter.
    let never: BTreeSet<&str> = never.filter(|key| SUPPORTED.contains(key)).collect();
    assert_eq!(never, BTreeSet::from(["seed", "preset"]));
    let known: BTreeSet<&str> = defaults::keys().chain(never).collect();
    assert_eq!(known, SUPPORTED.into_iter().collect());
    assert_eq!(fields("SamplingParams"), known.iter().map(|&key| key.to_owned()).collect());
}

#[test]
fn every_parameter_and_every_part_is_read_and_copied() {
    let all: Table = EVERY.parse().expect("TOML");
    let mut left: BTreeSet<&str> = defaults::keys().collect();
    for (name, preset) in &all {
        for (key, value) in preset.as_table().expect("a preset").iter().filter(|(key, _)| *key != "description") {
            let parameter = defaults::parameter(key).expect("a parameter");
            let (mut params, mut copied) = (SamplingParams::default(), SamplingParams::default());
            assert_eq!((parameter.set)(&mut params, value), Ok(()), "{name}.{key}");
            (parameter.copy)(&params, &mut copied);
            assert_ne!(copied, SamplingParams::default(), "{name}.{key} changes nothing, or is not copied");
            assert_eq!(copied, params, "{name}.{key}");
            left.remove(key.as_str());
        }
    }
    assert_eq!(left, BTreeSet::new(), "every_parameter.toml lacks these");
    for (message, keys) in [
        ("LogitBias", &["logit_bias"][..]),
        ("SequenceBias", &["sequence_bias"]),
        ("TokenBanRange", &["token_ban_ranges"]),
        ("NoRepeatNgramParams", &["no_repeat_ngram"]),
        ("LengthPenaltyParams", &["length_penalty"]),
        ("RepetitionDetectionParams", &["repetition_detection"]),
        ("ThinkingBudgetParams", &["thinking_budget"]),
        ("GrammarParams", &["grammar"]),
        ("ReportParams", &["report"]),
        ("LogprobsParams", &["logprobs"]),
        ("AcceptanceParams", &["acceptance"]),
        ("ProposerParams", &["proposer"]),
        ("DraftLengthParams", &["draft_length"]),
        ("WatermarkParams", &["watermark"]),
        ("KgwParams", &["watermark", "kgw"]),
        ("SynthidParams", &["watermark", "synthid"]),
        ("GumbelParams", &["watermark", "gumbel"]),
    ] {
        assert_eq!(parts(keys), fields(message), "{message}");
    }
}

#[test]
fn parts_are_what_they_are_on_the_wire() {
    let params = preset("history");
    let (tools, boxed) = (&params.history, |tokens: &[u32]| tokens.to_vec());
    let ngram = NoRepeatNgram { size: 3, window: 100, whitelist: boxed(&[13, 198]), prompt_size: 4 };
    assert_eq!(tools.no_repeat_ngram.as_deref(), Some(&ngram));
    assert_eq!(tools.length_penalty, Some(LengthPenalty { start: 50, factor: 1.1 }));
    let detection = RepetitionDetection { max_pattern_size: 20, min_pattern_size: 2, min_count: 5 };
    assert_eq!(tools.repetition_detection, Some(detection));
    let sequences = vec![boxed(&[9]), boxed(&[10, 11])];
    let thinking = ThinkingBudget {
        start_token_ids: boxed(&[5]),
        end_token_ids: boxed(&[6, 7]),
        budget: 100,
        forced_token_ids: boxed(&[8, 6, 7]),
        other_ends: sequences.clone(),
        filters: ThinkingFilters { temperature: Some(0.5), top_k: Some(20), top_p: Some(0.875), min_p: Some(0.25) },
    };
    assert_eq!(tools.thinking_budget.as_deref(), Some(&thinking));
    let start = GrammarStart { token_ids: boxed(&[7]), sequences, position: 0 };
    let grammar = GrammarParams { kind: GrammarKind::JsonSchema, text: "{}".to_owned(), start };
    assert_eq!(tools.grammar.as_deref(), Some(&grammar));
    assert_eq!(tools.sequence_bias, [SequenceBias { token_ids: boxed(&[25, 220]), bias: -1.5 }]);
    assert_eq!(tools.token_ban_ranges, [TokenBanRange { token_ids: boxed(&[220]), start: 1, length: 4 }]);
    assert_eq!((params.logit_bias, params.bad_words), (vec![(198, -1.5), (9, 2.0)], vec![vec![77], vec![10, 11]]));

    let params = preset("work");
    let logprobs = LogprobsParams { top_n: 5, mode: LogprobsMode::Processed, token_ids: boxed(&[1, 2]) };
    assert_eq!(params.logprobs, Some(logprobs));
    let proposer = ProposerParams {
        kind: ProposerKind::Suffix,
        max_draft_tokens: 5,
        min_match: 2,
        max_match: 9,
        min_token_prob: 0.2,
    };
    let advice = DraftLengthParams { draft_cost: 0.1, verify_cost: 0.05, max_draft_tokens: 6 };
    assert_eq!((params.proposer, params.draft_length), (Some(proposer), Some(advice)));
    let kgw = KgwParams {
        hashing_key: u64::MAX,
        greenlist_ratio: 0.5,
        bias: 3.0,
        seeding_scheme: SeedingScheme::Selfhash,
        context_width: 3,
    };
    assert_eq!(params.watermark(), Some(&Watermark::Kgw(kgw)));
    let synthid = SynthidParams {
        keys: vec![654, 400, 836],
        ngram_len: 4,
        context_history_size: 100,
        sampling_table_size: 1024,
        sampling_table_seed: 7,
        skip_first_ngram_calls: true,
    };
    assert_eq!(preset("relaxed").watermark(), Some(&Watermark::Synthid(synthid)));
    let gumbel = GumbelParams { key: 42, context_width: 5, context_history_size: 200 };
    assert_eq!(preset("race").watermark(), Some(&Watermark::Gumbel(gumbel)));
    let rules = ["work", "relaxed", "synthetic"].map(|name| preset(name).acceptance);
    let expected = [
        AcceptanceRule::Typical(Typical { epsilon: 0.1, alpha: 0.4 }),
        AcceptanceRule::Relaxed(Relaxed { top_n: 3, delta: 0.5, in_thinking_only: true }),
        AcceptanceRule::Synthetic(Synthetic { rate: 0.7 }),
    ];
    assert_eq!(rules, expected);
    let report =
        ReportParams { support_size: true, max_surviving_token_ids: 5, entropy: true, why_not_token_ids: boxed(&[7]) };
    assert_eq!(preset("samplers").samplers.report.as_deref(), Some(&report));
}

#[test]
fn absent_parts_are_the_wires_defaults_and_empty_tables_turn_off() {
    let read = |key: &str, value: &str| {
        let table: Table = format!("x = {value}").parse().expect("TOML");
        let mut params = SamplingParams::default();
        (defaults::parameter(key).expect("a parameter").set)(&mut params, &table["x"]).expect("it is right");
        params
    };
    assert_eq!(read("proposer", "{ kind = \"ngram\" }").proposer, Some(ProposerParams::new(ProposerKind::Ngram)));
    assert_eq!(read("draft_length", "{}").draft_length, Some(DraftLengthParams::new(0.0)));
    assert_eq!(read("acceptance", "{ rule = \"relaxed\" }").acceptance, AcceptanceRule::Relaxed(Relaxed::default()));
    let detection = RepetitionDetection { max_pattern_size: 9, min_pattern_size: 1, min_count: 0 };
    assert_eq!(read("repetition_detection", "{ max_pattern_size = 9 }").history.repetition_detection, Some(detection));
    assert_eq!(
        read("watermark", "{ kgw = {} }").watermark(),
        Some(&Watermark::Kgw(KgwParams::with_scheme(SeedingScheme::Lefthash)))
    );
    for (key, value) in [("proposer", "{}"), ("draft_length", "{ max_draft_tokens = 0 }"), ("watermark", "{}")] {
        assert_eq!(read(key, value), SamplingParams::default(), "{key}");
    }
    assert!(read("thinking_budget", "{}").history.thinking_budget.as_ref().expect("it says so").is_off());
}

/// All mistakes reported for a preset with these lines.
fn told(lines: &str) -> Vec<String> {
    let (_dir, path) = file(&format!("[a]\ndescription = \"d\"\n{lines}\n"));
    let text = mistakes(&["--presets", &path], &[]);
    let told = |line: &str| line.split_once(&format!("--presets: {path}: ")).map(|(_, told)| told.to_owned());
    text.lines().skip(1).map(|line| told(line).unwrap_or_else(|| panic!("no file in {line}"))).collect()
}

#[test]
fn what_cannot_stand_in_a_file_says_why() {
    let found = told("seed = 1\npreset = \"b\"\nstop = [\"x\"]\nsampler_state = {}\nlogits_bias = []");
    let expected = [
        "a.logits_bias: unknown key; did you mean logit_bias?",
        "a.preset: cannot be set in a file: write its parameters instead",
        "a.sampler_state: cannot be set in a file: it belongs to a single sequence",
        "a.seed: cannot be set in a file: all sequences would draw alike; each sequence gives its own",
        "a.stop: is not supported: the server stops at tokens, not at text; use stop_token_ids or stop_token_sequences",
    ];
    assert_eq!(found, expected);
}

#[test]
fn every_mistake_of_a_preset_is_told_at_once() {
    let lines = [
        "top_p = 2.0",
        "min_p = \"x\"",
        "temperature = 0.000001",
        "bad_words = [1, [], \"x\"]",
        "stop_token_ids = [1, 9999999, -1]",
        "no_repeat_ngram = { size = 65, window = 99999, sise = 1 }",
        "length_penalty = { factor = 0, start = -1 }",
        "sequence_bias = [{ token_ids = [], bias = 1 }, { token_ids = [1] }, { token_ids = [1], bias = 1e9 }, 5]",
        "token_ban_ranges = [{ token_ids = [1] }, { token_ids = [1], length = 1 }, { token_ids = [9999999], length = 1 }]",
        "acceptance = { rule = \"typical\", relaxed_delta = 1, typical_alpha = \"x\" }",
        "proposer = { max_match = 3 }",
        "logit_bias = [{ token_id = 1, bias = 1e9 }, { token_id = 9999999 }]",
        "watermark = { gumbel = { key = -1 }, kgw = {} }",
    ];
    let found = told(&lines.join("\n"));
    let expected = [
        // Values that cannot be read, in the order of keys.
        "a.acceptance.typical_alpha: \"x\" is not a number",
        "a.acceptance.relaxed_delta: applies only to the rule RELAXED",
        "a.bad_words[2]: \"x\" is not a token id",
        "a.length_penalty.start: -1 is not a whole number, 0 or more",
        "a.min_p: \"x\" is not a number; its default is 0",
        "a.no_repeat_ngram.sise: unknown key; did you mean size?",
        "a.proposer.kind: is required",
        "a.sequence_bias[3]: 5 is not a table with token_ids, bias",
        "a.stop_token_ids[2]: -1 is not a token id",
        "a.watermark.gumbel.key: is not a key, a whole number below 2^64",
        // Values out of range, of the other parameters.
        "a.temperature: is 0.000001, must be in 0.00001",
        "a.top_p: is 2, must be in 0 ..= 1",
        "a.logit_bias[1]: token id 9999999 is outside",
        "a.logit_bias[0].bias: is 1000000000, must be",
        "a.token_ban_ranges[0].length: is 0, must be at least 1",
        "a.token_ban_ranges[2].token_ids[0]: token id 9999999",
        "a.bad_words[1].token_ids: is empty",
        "a.stop_token_ids[1]: token id 9999999",
        "a.no_repeat_ngram.size: is 65",
        "a.no_repeat_ngram.window: is 99999",
        "a.length_penalty.factor: is 0, must be",
        "a.sequence_bias[0].token_ids: is empty",
        "a.sequence_bias[2].bias: is 1000000000",
    ];
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for part in expected {
        assert!(found.iter().any(|line| line.starts_with(part)), "{part} is missing in {found:#?}");
    }
    // The ranges of parts that can be read, one after the other. Entries of a list are reported by their places in the
    // file.
    let found = told(
        "no_repeat_ngram = { size = 65, window = 99999, prompt_size = 65 }\n\
         sequence_bias = [{ token_ids = [] }, { token_ids = [1] }, { token_ids = [1], bias = 1e9 }]",
    );
    let expected = [
        "a.no_repeat_ngram.size: is 65",
        "a.no_repeat_ngram.prompt_size: is 65",
        "a.no_repeat_ngram.window: is 99999",
        "a.sequence_bias[0].token_ids: is empty",
        "a.sequence_bias[2].bias: is 1000000000",
    ];
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    assert!(found.iter().zip(expected).all(|(found, expected)| found.starts_with(expected)), "{found:#?}");
}

#[test]
fn what_contradicts_is_told_beside_other_mistakes_and_not_because_of_them() {
    let found = told(
        "min_tokens = 3\nmax_tokens = 2\ntop_p = 2\nengine_order = \"vllm\"\ntfs = 0.5\ntop_a = 1\npenalty_decay_n = 5",
    );
    let expected = [
        "a.top_p: is 2",
        "a.min_tokens: is 3, above max_tokens 2",
        "a.engine_order: has no place for tfs, top_a, which are on",
        "a.penalty_last_n: is 0, but penalty_decay_n",
    ];
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for part in expected {
        assert!(found.iter().any(|line| line.starts_with(part)), "{part} is missing in {found:#?}");
    }
    // A required parameter is given but wrong. That is the one mistake.
    for lines in [
        "forced_last_token = 1\nmax_tokens = \"x\"",
        "penalty_decay_n = 5\npenalty_last_n = \"x\"",
        "tfs = 5\nengine_order = \"vllm\"",
        "dynatemp_high = 1e9\ndynatemp_low = 0.5",
    ] {
        assert_eq!(told(lines).len(), 1, "{lines}: {:#?}", told(lines));
    }
    assert_eq!(told("forced_last_token = 1").len(), 1);
}

#[test]
fn what_is_lacking_is_told_once() {
    for (line, expected) in [
        ("repetition_detection = { max_pattern_size = 3 }", "a.repetition_detection.min_count: is 0, must be"),
        (
            "repetition_detection = { max_pattern_size = 3, min_count = 1 }",
            "a.repetition_detection.min_count: is 1, must be",
        ),
        ("thinking_budget = { budget = 5 }", "a.thinking_budget.start_token_ids: is empty; a budget needs its own"),
        ("thinking_budget = { budget = 5, start_token_ids = [9999999] }", "a.thinking_budget."),
        ("length_penalty = { start = 5 }", "a.length_penalty.factor: is required"),
        ("token_ban_ranges = [{ start = 1 }]", "a.token_ban_ranges[0].length: is 0"),
        ("watermark = { synthid = { keys = [] } }", "a.watermark.synthid.keys: has 0 entries"),
        ("acceptance = { rule = \"relaxed\", relaxed_top_n = 0 }", "a.acceptance.relaxed_top_n: is 0"),
    ] {
        // There is another error too.
        let found = told(&format!("{line}\ntop_p = 2"));
        let own: Vec<&String> = found.iter().filter(|told| told.starts_with(expected)).collect();
        let distinct: BTreeSet<&String> = found.iter().collect();
        assert!(!own.is_empty() && distinct.len() == found.len() && found.len() <= 4, "{line}: {found:#?}");
        let places: BTreeSet<&str> = found.iter().filter_map(|told| told.split(": ").next()).collect();
        assert_eq!(places.len(), found.len(), "one of each place: {found:#?}");
        assert!(found.iter().any(|told| told.starts_with("a.top_p: is 2")), "{line}: {found:#?}");
    }
}

#[test]
fn a_file_full_of_mistakes_is_told_in_part() {
    let lines: Vec<String> = (0..20_000).map(|i| format!("wrong_{i} = 1")).collect();
    let found = told(&lines.join("\n"));
    let most = file::MAX_TOLD;
    let more = |text: &str| text.trim_end().ends_with("has more mistakes; at most 64 are reported at a time");
    assert!(found.len() == most + 1 && more(&found[most]), "{found:#?}");
    let bad: Vec<String> = (0..20_000).map(|i| format!("{{ token_id = {i}, bias = 1e9 }}")).collect();
    assert_eq!(told(&format!("logit_bias = [{}]", bad.join(", "))).len(), most + 1);
    let presets: Vec<String> = (0..200).map(|i| format!("[p{i}]\ntop_p = 2\n")).collect();
    let (_dir, path) = file(&presets.concat());
    let text = mistakes(&["--presets", &path], &[]);
    assert_eq!(text.lines().count(), 1 + most + 1, "{text}");
    assert!(more(&text), "{text}");
    // The same for a server's file, its settings and its defaults.
    for (head, name) in [("", "croupier.toml: has"), ("[defaults]\n", "croupier.toml: defaults: has")] {
        let (_dir, path) = file(&format!("{head}{}", lines.join("\n")));
        let text = mistakes(&["--config", &path], &[]);
        assert!(text.lines().count() == 1 + most + 1 && more(&text) && text.contains(name), "{text}");
    }
    // Syntax mistakes of the file.
    let (_dir, path) = file("[a]\nx = = 1\n[b]\ny = [1,,]\n");
    let text = mistakes(&["--presets", &path], &[]);
    assert!(text.matches("is not TOML").count() >= 2 && text.contains("line 2") && text.contains("line 4"), "{text}");
}

#[test]
fn defaults_have_the_same_keys() {
    let text = EVERY.split("\n\n[history]\n").nth(1).and_then(|rest| rest.split("\n\n[[").next()).expect("its keys");
    let keys: Vec<&str> = text.lines().filter(|line| !line.starts_with("description")).collect();
    let (_dir, path) = file(&format!("[defaults]\n{}\n", keys.join("\n")));
    let defaults = config(&["--config", &path, "--grammars=true", "--vocabulary", TEXTS], &[]).defaults;
    let mut expected = preset("history");
    (expected.history.sequence_bias, expected.history.token_ban_ranges) = (Vec::new(), Vec::new());
    assert_eq!(defaults, expected);
    let (_dir, path) = file("[defaults]\nseed = 1\nlength_penalty = { factor = 0.001 }\n");
    let text = mistakes(&["--config", &path], &[]);
    for part in ["2 mistakes", "defaults.seed: cannot be set in a file", "defaults.length_penalty.factor: is 0.001"] {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
    assert!(text.contains(&format!("{path}: defaults.")));
}

#[test]
fn a_grammar_is_one_and_compiles_over_the_servers_vocabulary() {
    let lacking = "a.grammar: needs a server that compiles grammars; set grammars and vocabulary";
    let second = "a.grammar.lark: is a second grammar; keep only one of json_schema, regex, lark, gbnf, choices";
    assert_eq!(told("grammar = { regex = \"a\", lark = \"start: \\\"a\\\"\" }"), [second, lacking]);
    assert_eq!(told("grammar = { regex = 3 }"), ["a.grammar.regex: 3 is not a string"]);
    assert_eq!(told("grammar = { regex = \"a\" }"), [lacking]);
    assert!(told("grammar = { start_position = 3 }")[0].starts_with("a.grammar.start_position: says where a"));
    let (_dir, path) = file("[mine]\ndescription = \"x\"\ngrammar = { regex = \"(\" }\n");
    let (_other, config) = file("[defaults]\ngrammar = { json_schema = \"{\" }\n");
    let text = mistakes(&["--presets", &path, "--config", &config, "--grammars=true", "--vocabulary", TEXTS], &[]);
    for part in ["2 mistakes", "  defaults.grammar.json_schema: is not valid JSON", ": mine.grammar.regex: "] {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
}

/// The same function is used where a single value is read.
#[test]
fn a_watermark_has_one_scheme_and_its_keys_are_not_told() {
    let found = told("watermark = { gumbel = { key = \"secret\" } }");
    assert_eq!(found.len(), 1);
    assert!(!found[0].contains("secret"), "{found:?}");
    assert!(told("watermark = { gumbel = { key = 1 }, kgw = {} }")[0].contains("has more than one scheme"));
    assert!(
        told("watermark = { synthid = { keys = [1, 1] } }")[0].starts_with("a.watermark.synthid.keys[1]: repeats an")
    );
    let is_table = |value: &Value| value.is_table();
    assert!(EVERY.parse::<Table>().expect("TOML").values().all(is_table));
}
