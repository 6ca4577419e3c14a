//! Presets, and what they contain.

use super::*;
use crate::params::{EngineOrder, Sampler, SamplerOrder};

#[test]
fn presets_are_read() {
    let shipped = Config::default().presets;
    let mut problems = Vec::new();
    assert_eq!(crate::config::presets::read(None, &Limits::default(), &mut problems), shipped);
    assert_eq!((problems, shipped.iter().count()), (Vec::new(), 9), "no mistake in those that come with the program");

    let (_dir, path) = file("[mine]\ndescription = \"one\"\ntemperature = 0.5\ntop_k = 3\n");
    let presets = config(&["--presets", &path], &[]).presets;
    let mut params = SamplingParams { top_p: 0.5, ..SamplingParams::default() };
    presets.get("mine").expect("it is there").apply(&mut params);
    assert_eq!(params, SamplingParams { temperature: 0.5, top_k: 3, top_p: 0.5, ..SamplingParams::default() });
    let unknown = presets.get("chat").expect_err("it took the place of the others");
    assert!(unknown.message.ends_with("; known: mine"), "{}", unknown.message);
}

/// The example preset of docs/configuration.md.
#[test]
fn a_preset_can_be_that_of_an_engine() {
    let page = include_str!("../../../docs/configuration.md");
    let example = page.split("```toml\n").find(|part| part.starts_with("[llama]")).expect("the example");
    let (_dir, path) = file(example.split("```").next().expect("its end"));
    let mut params = SamplingParams { seed: Some(1), ..SamplingParams::default() };
    config(&["--presets", &path], &[]).presets.get("llama").expect("it is there").apply(&mut params);
    let (order, history) = (&params.samplers.sampler_order, &params.history);
    assert_eq!(*order, SamplerOrder::Engine(EngineOrder::LlamaCpp));
    assert_eq!((params.top_k, history.penalty_last_n, params.counts_prompt()), (40, 64, false));
    params.frequency_penalty = 0.1;
    assert!(params.counts_prompt(), "as the engine does");
    assert_eq!(history.dry_penalty_last_n, 64);
    assert_eq!(history.dry_sequence_breaker_texts, ["\n", ":", "\"", "*"]);

    let (_dir, path) =
        file("[mine]\ndescription = \"one\"\nsampler_order = [\"top_k\", \"xtc\", \"temperature\"]\ntop_k = 3\n");
    let mut params = SamplingParams::default();
    config(&["--presets", &path], &[]).presets.get("mine").expect("it is there").apply(&mut params);
    let listed = |engine| SamplerOrder::Custom(vec![Sampler::TopK, Sampler::Xtc, Sampler::Temperature], engine);
    assert_eq!(params.samplers.sampler_order, listed(EngineOrder::Croupier));
    // With the rules that are already set, or with those of the preset.
    params.samplers.sampler_order = SamplerOrder::Engine(EngineOrder::Vllm);
    config(&["--presets", &path], &[]).presets.get("mine").expect("it is there").apply(&mut params);
    assert_eq!(params.samplers.sampler_order, listed(EngineOrder::Vllm));
    for lines in [
        ["sampler_order = [\"top_k\"]", "engine_order = \"exllama\""],
        ["engine_order = \"exllama\"", "sampler_order = [\"top_k\"]"],
    ] {
        let (_dir, path) = file(&format!("[both]\ndescription = \"two\"\n{}\n{}\ntop_k = 3\n", lines[0], lines[1]));
        config(&["--presets", &path], &[]).presets.get("both").expect("it is there").apply(&mut params);
        assert_eq!(params.samplers.sampler_order, SamplerOrder::Custom(vec![Sampler::TopK], EngineOrder::Exllama));
    }

    let (_dir, path) = file("[defaults]\nengine_order = \"exllama\"\ndry_sequence_breakers = [3]\n");
    let defaults = config(&["--config", &path], &[]).defaults;
    assert_eq!(defaults.samplers.sampler_order, SamplerOrder::Engine(EngineOrder::Exllama));
    assert_eq!(defaults.history.dry_sequence_breakers, [[3]]);
}

#[test]
fn every_mistake_in_an_order_or_a_list_is_told() {
    let told = |line: &str| {
        let (_dir, path) = file(&format!("[a]\ndescription = \"d\"\n{line}\n"));
        let told = mistakes(&["--presets", &path], &[]);
        assert!(told.starts_with("croupier: 1 mistake"), "{told}");
        told.split_once(": a.").map(|(_, told)| told.trim().to_owned()).unwrap_or_default()
    };
    let cases = [
        (r#"engine_order = "lama_cpp""#, "engine_order: \"lama_cpp\" is not an engine; did you mean llama_cpp?"),
        (
            "engine_order = 1",
            "engine_order: 1 is not an engine; known: croupier, llama_cpp, vllm, transformers, text_generation_webui, exllama, sglang, kobold_cpp, exllama_v3, mlx, tensorrt_llm, mistral_rs",
        ),
        (r#"engine_order = "LLAMA_CPP""#, "engine_order: \"LLAMA_CPP\" is not an engine; did you mean llama_cpp?"),
        ("engine_order = \"vllm\"\ntfs = 0.5", "engine_order: has no place for tfs, which is on"),
        (r#"sampler_order = ["topk"]"#, "sampler_order[0]: \"topk\" is not a sampler; did you mean top_k?"),
        (r#"sampler_order = ["typ_p"]"#, "sampler_order[0]: \"typ_p\" is not a sampler; did you mean typical_p?"),
        (
            r#"sampler_order = ["penalties", "top_k"]"#,
            "sampler_order[0]: \"penalties\" is not a sampler; it always comes before the samplers, so leave it out",
        ),
        (r#"sampler_order = ["smoothing_factor"]"#, "\"smoothing_factor\" is not a sampler; did you mean smoothing?"),
        (r#"sampler_order = "top_k""#, "sampler_order: \"top_k\" is not a list of samplers, such as [\"top_k\""),
        (r#"sampler_order = ["top_k", "top_k"]"#, "sampler_order[1]: top_k is given twice; give it once"),
        (r#"dry_sequence_breakers = ["\n"]"#, "dry_sequence_breakers[0]: \"\\n\" is not a token id"),
        ("dry_sequence_breakers = [[1, -2]]", "dry_sequence_breakers[0][1]: -2 is not a token id"),
        ("dry_sequence_breakers = 5", "dry_sequence_breakers: 5 is not a list of token ids, such as [198, [25, 220]]"),
        ("dry_sequence_breakers = [1, []]", "dry_sequence_breakers[1].token_ids: is empty"),
        ("dry_sequence_breakers = [9999999]", "dry_sequence_breakers[0].token_ids[0]: token id 9999999 is outside"),
        ("typ_p = 0.5", "typ_p: unknown key; did you mean typical_p?"),
        ("repeat_last_n = 64", "repeat_last_n: unknown key; did you mean penalty_last_n? In it 0 means the whole text"),
        ("dynatemp_range = 0.5", "dynatemp_range: unknown key; give both ends, dynatemp_low and dynatemp_high"),
        ("dry_sequence_breaker = [1]", "dry_sequence_breaker: unknown key; did you mean dry_sequence_breakers?"),
    ];
    for (line, expected) in cases {
        let told = told(line);
        assert!(told.contains(expected), "{line}: {told}");
    }
}

#[test]
fn every_mistake_in_presets_is_told() {
    let text =
        "x = 1\n[Up]\ndescription = \"d\"\n[none]\ntop_k = 1\n[a]\ndescription = \"d\"\ntop_p = 2.0\ntop_q = 1\n";
    let (_dir, path) = file(text);
    let told = mistakes(&["--presets", &path], &[]);
    for part in [
        "x: must be a table of parameters, [x]",
        "Up: a name must have 1 to 64 characters of a-z",
        "none.description: is missing; say in 1 to 256 bytes",
        "a.top_p: is 2, must be in 0 ..= 1",
        "a.top_q: unknown key; did you mean top_",
    ] {
        assert!(told.contains(&format!("--presets: {path}: {part}")), "{part}: {told}");
    }
    assert!(mistakes(&["--presets=/nowhere.toml"], &[]).contains("/nowhere.toml: cannot be read"));
}
