//! Named parameter sets: what they fill in, what takes precedence over them, and unknown names.

use crate::support::*;
use crate::work::*;
use croupier::backend::cpu::CpuBackend;
use croupier::config::{self, Command};
use croupier::limits::Limits;
use croupier::params;
use croupier::proto::decode_request::Request;
use croupier::proto::decode_response::Response;
use croupier::proto::*;
use croupier::rpc::ServerSetup;
use tonic::Code;

/// Tokens of 200 equal rows with parameters that differ only in their seeds.
async fn drawn(server: &TestServer, defaults: Option<SamplingParams>, params: SamplingParams) -> Vec<u32> {
    let params = |seed| SamplingParams { seed: Some(seed), ..params.clone() };
    let rows = (0..200).map(|seed| SampleRow { row: Some(0), params: Some(params(seed)), ..Default::default() });
    let Some(step::Logits::Inline(logits)) = inline(&[logits(3, 0)]) else { panic!("one row") };
    let request = SampleRequest {
        vocab_size: VOCAB,
        logits_dtype: LogitsDtype::F32.into(),
        default_params: defaults,
        rows: rows.collect(),
        logits: Some(logits),
        ..Default::default()
    };
    let answer = server.client().await.sample(request).await.unwrap().into_inner();
    answer.rows.into_iter().map(|row| row.token.unwrap().token_id).collect()
}

fn preset(name: &str) -> SamplingParams {
    SamplingParams { preset: name.to_owned(), ..Default::default() }
}

#[tokio::test]
async fn a_preset_fills_what_is_absent() {
    let server = TestServer::start().await;
    let chat = SamplingParams { temperature: Some(0.7), min_p: Some(0.05), ..Default::default() };
    let expected = drawn(&server, None, chat.clone()).await;
    assert_ne!(expected, drawn(&server, None, SamplingParams::default()).await, "chat differs from the defaults");
    assert_eq!(drawn(&server, None, preset("chat")).await, expected);
    assert_eq!(drawn(&server, Some(preset("chat")), SamplingParams::default()).await, expected);

    let hot = SamplingParams { temperature: Some(2.0), ..preset("chat") };
    let expected = drawn(&server, None, SamplingParams { temperature: Some(2.0), ..chat.clone() }).await;
    assert_eq!(drawn(&server, None, hot.clone()).await, expected, "a field goes before its preset");
    assert_eq!(drawn(&server, Some(hot), SamplingParams::default()).await, expected);
}

#[tokio::test]
async fn a_preset_goes_before_the_stream_and_leaves_what_it_does_not_give() {
    let server = TestServer::start().await;
    let stream = SamplingParams { temperature: Some(3.0), top_k: Some(4), ..Default::default() };
    let expected = SamplingParams { temperature: Some(0.7), min_p: Some(0.05), top_k: Some(4), ..Default::default() };
    let expected = drawn(&server, None, expected).await;
    assert_eq!(drawn(&server, Some(stream), preset("chat")).await, expected);
    // Lists of the stream apply together with a preset.
    let stream = SamplingParams { allowed_token_ids: vec![1, 2], ..Default::default() };
    let tokens = drawn(&server, Some(stream), preset("chat")).await;
    assert!(tokens.iter().all(|token| [1, 2].contains(token)), "{tokens:?}");
}

/// A server with its own presets and defaults.
async fn server_with(presets: &str, defaults: &str) -> TestServer {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (presets, defaults) = (path("presets", presets), path("config", &format!("[defaults]\n{defaults}")));
    let args = ["croupier", "--presets", &presets, "--config", &defaults].map(std::ffi::OsString::from);
    let Ok(Command::Serve(config)) = config::parse(args, &|_| None) else { panic!("no mistakes") };
    let (defaults, defaults_written) = (config.defaults, config.defaults_written);
    let setup = ServerSetup { presets: config.presets, defaults, defaults_written, ..ServerSetup::default() };
    TestServer::with_setup(Transport::Tcp, Limits::default(), Box::new(CpuBackend::new(1)), setup).await
}

/// Opens a text that repeats 5 6 7, and takes its most likely token: 7, unless DRY is active.
async fn next_of_a_loop(server: &TestServer, stream: SamplingParams, params: SamplingParams) -> u32 {
    let mut worker = server.worker_with(StreamConfig { default_params: Some(stream), ..config() }).await;
    let params = SamplingParams { temperature: Some(0.0), dry_multiplier: Some(9.0), ..params };
    let open = OpenSequence { prompt_token_ids: [5, 6, 7].repeat(5)[..14].to_vec(), ..open(1, params) };
    assert_eq!(worker.step(open_step(vec![open])).await.open[0].status(), OpenStatus::Ok);
    let mut row = vec![0.0; VOCAB as usize];
    (row[7], row[8]) = (2.0, 1.0);
    ids(&worker.step(step_of(sample_work(1), &[row])).await.work[0])[0]
}

#[tokio::test]
async fn a_preset_has_sequence_breakers() {
    let text = "[model]\ndescription = \"d\"\ndry_sequence_breakers = [[9, 9], 6]\n[none]\ndescription = \"d\"\n";
    let server = server_with(text, "").await;
    let own = |token| SamplingParams {
        dry_sequence_breakers: vec![TokenSequence { token_ids: vec![token] }],
        ..Default::default()
    };
    let none = SamplingParams::default;
    assert_eq!(next_of_a_loop(&server, none(), preset("none")).await, 8, "DRY is about it");
    assert_eq!(next_of_a_loop(&server, none(), own(6)).await, 7, "a breaker stands before it");
    assert_eq!(next_of_a_loop(&server, none(), preset("model")).await, 7);
    assert_eq!(next_of_a_loop(&server, preset("model"), none()).await, 7);
    assert_eq!(next_of_a_loop(&server, preset("model"), preset("none")).await, 7, "the stream's");
    assert_eq!(next_of_a_loop(&server, own(9), preset("model")).await, 7, "before the stream's");
    let both = SamplingParams { preset: "model".to_owned(), ..own(9) };
    assert_eq!(next_of_a_loop(&server, none(), both.clone()).await, 8, "the sequence's own go first");
    assert_eq!(next_of_a_loop(&server, both, none()).await, 8);
    let server = server_with(text, "dry_sequence_breakers = [6]").await;
    assert_eq!(next_of_a_loop(&server, none(), none()).await, 7, "the server's");
    assert_eq!(next_of_a_loop(&server, own(9), none()).await, 8);
}

#[tokio::test]
async fn a_preset_has_an_order_and_a_vocabulary_its_breakers() {
    let text = "[hot]\ndescription = \"d\"\nengine_order = \"llama_cpp\"\ntemperature = 3\n\
        [cut]\ndescription = \"d\"\nsampler_order = [\"top_p\", \"temperature\"]\ntemperature = 3\n\
        [big]\ndescription = \"d\"\ndry_sequence_breakers = [50]\n";
    let server = server_with(text, "").await;
    let order = |sampler_order: &[SamplerKind], engine_order: EngineOrder| SamplingParams {
        temperature: Some(3.0),
        top_p: Some(0.5),
        sampler_order: sampler_order.iter().map(|&kind| kind.into()).collect(),
        engine_order: engine_order.into(),
        ..Default::default()
    };
    let none = EngineOrder::Unspecified;
    let last = drawn(&server, None, order(&[SamplerKind::TopP, SamplerKind::Temperature], none)).await;
    assert_ne!(last, drawn(&server, None, order(&[], none)).await, "temperature last differs");
    for name in ["hot", "cut"] {
        let cut = SamplingParams { top_p: Some(0.5), ..preset(name) };
        assert_eq!(drawn(&server, None, cut.clone()).await, last, "{name}");
        assert_eq!(drawn(&server, Some(cut.clone()), SamplingParams::default()).await, last, "{name}");
        let vllm = SamplingParams { engine_order: EngineOrder::Vllm.into(), ..cut };
        assert_eq!(
            drawn(&server, None, vllm).await,
            drawn(&server, None, order(&[], EngineOrder::Vllm)).await,
            "{name}"
        );
    }
    let mut worker = server.worker().await;
    let reply = worker.step(open_step(vec![open(1, preset("big"))])).await;
    let error = reply.open[0].error.as_ref().unwrap();
    assert_eq!(error.field, "params.dry_sequence_breakers[0].token_ids[0]", "{}", error.message);
}

#[tokio::test]
async fn a_message_has_few_breakers_of_presets_prepared() {
    let many = format!("[many]\ndescription = \"d\"\ndry_sequence_breakers = {:?}\n", vec![vec![1; 64]; 1024]);
    let server = server_with(&many, "").await;
    let opens = |count| open_step((1..=count).map(|id| open(id, preset("many"))).collect());
    let mut worker = server.worker().await;
    assert!(worker.step(opens(16)).await.open.iter().all(|open| open.status() == OpenStatus::Ok));
    let mut worker = server.worker().await;
    worker.send(Request::Step(opens(17))).await;
    let status = worker.reply().await.unwrap_err();
    assert_eq!((status.code(), violation(&status).0.as_str()), (Code::InvalidArgument, "step.open"));
    assert!(status.message().contains("1114112 tokens"), "{}", status.message());
    let mut worker = server.worker_with(StreamConfig { default_params: Some(preset("many")), ..config() }).await;
    let few = (1..=40).map(|id| open(id, SamplingParams { seed: Some(1), ..Default::default() })).collect();
    assert!(worker.step(open_step(few)).await.open.iter().all(|open| open.status() == OpenStatus::Ok));
}

/// The greedy next token of a text that ends with 6 0 6, and the reason if the text ends there. Logits decrease with the token id.
async fn next_after_six(server: &TestServer, stream: SamplingParams, params: SamplingParams) -> (u32, FinishReason) {
    let mut worker = server.worker_with(StreamConfig { default_params: Some(stream), ..config() }).await;
    let params = SamplingParams { temperature: Some(0.0), ..params };
    let open = OpenSequence { prompt_token_ids: vec![6, 0, 6], ..open(1, params) };
    let reply = worker.step(open_step(vec![open])).await;
    assert_eq!(reply.open[0].status(), OpenStatus::Ok, "{:?}", reply.open[0].error);
    let row: Vec<f32> = (0..VOCAB).map(|token| -(token as f32)).collect();
    let work = worker.step(step_of(sample_work(1), &[row])).await.work.remove(0);
    (ids(&work)[0], work.finish_reason())
}

#[tokio::test]
async fn lists_and_tools_of_a_preset_or_of_the_server_are_in_force() {
    let none = SamplingParams::default;
    let cases = [
        ("banned_token_ids = [0, 1]", 2),
        ("allowed_token_ids = [7, 9]", 7),
        ("logit_bias = [{ token_id = 5, bias = 100 }]", 5),
        ("bad_words = [0, [1, 2]]", 1),
        ("sequence_bias = [{ token_ids = [6, 9], bias = 100 }]", 9),
        ("no_repeat_ngram = { size = 2 }", 1),
        ("no_repeat_ngram = { prompt_size = 2 }", 1),
        ("token_ban_ranges = [{ token_ids = [0, 1, 2], length = 1 }]", 3),
        ("forced_first_token = 11", 11),
        ("forced_last_token = 12\nmax_tokens = 1", 12),
        ("thinking_budget = { start_token_ids = [6], end_token_ids = [8] }", 8),
    ];
    for (lines, expected) in cases {
        let server = server_with(&format!("[mine]\ndescription = \"d\"\n{lines}\n"), "").await;
        let next = async |stream, params| next_after_six(&server, stream, params).await.0;
        assert_eq!(next(none(), none()).await, 0, "{lines}");
        assert_eq!(next(none(), preset("mine")).await, expected, "{lines}");
        assert_eq!(next(preset("mine"), none()).await, expected, "{lines}");
        let server = server_with("", lines).await;
        assert_eq!(next_after_six(&server, none(), none()).await.0, expected, "{lines}: of the server");
    }
    let text = "[mine]\ndescription = \"d\"\nbanned_token_ids = [0]\nstop_token_ids = [1, 2]\n\
        thinking_budget = { start_token_ids = [9], end_token_ids = [8] }\nlogprobs = { top_n = 2 }\n";
    let server = server_with(text, "banned_token_ids = [1]").await;
    let ban = |token| SamplingParams { banned_token_ids: vec![token], ..none() };
    let stop = FinishReason::StopToken;
    assert_eq!(next_after_six(&server, none(), preset("mine")).await, (1, stop), "the preset's, not the server's");
    let own = SamplingParams { preset: "mine".to_owned(), ..ban(3) };
    assert_eq!(next_after_six(&server, none(), own).await, (0, FinishReason::Unspecified), "a list of its own");
    assert_eq!(next_after_six(&server, ban(2), preset("mine")).await, (1, stop), "before the stream's");
    assert_eq!(next_after_six(&server, preset("mine"), ban(1)).await, (0, FinishReason::Unspecified));
    let off = SamplingParams { thinking_budget: Some(ThinkingBudgetParams::default()), ..preset("mine") };
    assert_eq!(next_after_six(&server, none(), off).await, (1, stop));
}

#[tokio::test]
async fn a_preset_reports_and_marks() {
    let text = "[told]\ndescription = \"d\"\nlogprobs = { top_n = 2, mode = \"processed\" }\nreport = { entropy = true }\n\
        [marked]\ndescription = \"d\"\nwatermark = { gumbel = { key = 7, context_width = 1 } }\n";
    let server = server_with(text, "").await;
    let mut worker = server.worker().await;
    let opens = vec![open(1, preset("told")), open(2, SamplingParams::default())];
    worker.step(open_step(opens)).await;
    let works =
        Step { work: vec![sample_work(1), sample_work(2)], ..step_of(sample_work(1), &[logits(3, 0), logits(3, 0)]) };
    let reply = worker.step(works).await;
    let [told, plain] = [0, 1].map(|i| &reply.work[i].tokens[0]);
    assert_eq!((told.top_logprobs.len(), plain.top_logprobs.len()), (2, 0));
    assert!(told.report.as_ref().unwrap().entropy.is_some() && plain.report.is_none());
    // The key decides the Gumbel race, whatever the seed.
    let mark = GumbelParams { key: Some(7), context_width: Some(1), context_history_size: None };
    let mark = WatermarkParams { scheme: Some(watermark_params::Scheme::Gumbel(mark)) };
    let mut drawn = Vec::new();
    for own in [preset("marked"), SamplingParams { watermark: Some(mark), ..Default::default() }] {
        for seed in 0..8 {
            let own = SamplingParams { seed: Some(seed), ..own.clone() };
            let open = OpenSequence { prompt_token_ids: vec![6], ..open(10, own) };
            let opened = Step { close_sequence_ids: vec![10], ..open_step(vec![open]) };
            assert_eq!(worker.step(opened).await.open[0].status(), OpenStatus::Ok);
            drawn.push(ids(&worker.step(step_of(sample_work(10), &[logits(4, 0)])).await.work[0])[0]);
        }
    }
    assert!(drawn.iter().all(|token| *token == drawn[0]), "{drawn:?}");
}

#[tokio::test]
async fn a_message_has_few_entries_of_presets_copied() {
    let range = format!("{{ token_ids = {:?}, length = 1 }}", vec![1; 4096]);
    let many = format!("[many]\ndescription = \"d\"\ntoken_ban_ranges = [{}]\n", [range.as_str(); 8].join(", "));
    let words = format!("[words]\ndescription = \"d\"\nbad_words = {:?}\n", vec![vec![1; 64]; 1024]);
    let table =
        "[table]\ndescription = \"d\"\nwatermark = { synthid = { keys = [1], sampling_table_size = 1048576 } }\n";
    let server = server_with(&(many + &words + table), "").await;
    for (name, most, part) in
        [("many", 512, "would copy 16809984 entries"), ("words", 16, "prepare 1114112"), ("table", 16, "of 17825792")]
    {
        let opens = |count| open_step((1..=count).map(|id| open(id, preset(name))).collect());
        let mut worker = server.worker().await;
        let opened = worker.step(opens(most)).await.open;
        assert!(opened.iter().all(|open| open.status() == OpenStatus::Ok), "{name}: {:?}", opened[0]);
        let mut worker = server.worker().await;
        worker.send(Request::Step(opens(most + 1))).await;
        let status = worker.reply().await.unwrap_err();
        assert_eq!((status.code(), violation(&status).0.as_str()), (Code::InvalidArgument, "step.open"));
        assert!(status.message().contains(part), "{}", status.message());
    }
}

#[test]
fn files_name_orders_as_the_wire_does() {
    let after = |name: &str, prefix: &str| name.strip_prefix(prefix).unwrap().to_lowercase();
    let engines = (1..).map_while(|i| EngineOrder::try_from(i).ok());
    let engines: Vec<_> = engines.map(|engine| after(engine.as_str_name(), "ENGINE_ORDER_")).collect();
    assert_eq!(engines, params::EngineOrder::ALL.map(params::EngineOrder::name));
    let samplers = (1..).map_while(|i| SamplerKind::try_from(i).ok());
    let mut samplers: Vec<_> = samplers.map(|sampler| after(sampler.as_str_name(), "SAMPLER_KIND_")).collect();
    let mut named = params::Sampler::ALL.map(params::Sampler::kind_name);
    samplers.sort();
    named.sort_unstable();
    assert_eq!(samplers, named);
}

#[tokio::test]
async fn presets_are_listed_and_others_are_mistakes() {
    let server = TestServer::start().await;
    let info = server.client().await.get_server_info(GetServerInfoRequest {}).await.unwrap().into_inner();
    let names: Vec<&str> = info.presets.iter().map(|preset| preset.name.as_str()).collect();
    assert!(names.contains(&"chat") && names.is_sorted(), "{names:?}");
    assert!(info.presets.iter().all(|preset| !preset.description.is_empty()));

    let mut worker = server.worker().await;
    worker.send(Request::Step(open_step(vec![open(1, preset("chatt")), open(2, preset("chat"))]))).await;
    let Some(Response::Step(reply)) = worker.reply().await.unwrap() else { panic!("expected a step") };
    let error = reply.open[0].error.as_ref().unwrap();
    assert_eq!((reply.open[0].status(), error.field.as_str()), (OpenStatus::InvalidArgument, "params.preset"));
    assert!(error.message.contains(&names.join(", ")), "{}", error.message);
    assert_eq!(reply.open[1].status(), OpenStatus::Ok);

    let mut stream = server.stream().await.unwrap();
    stream.send(Request::Config(StreamConfig { default_params: Some(preset("x")), ..config() })).await;
    let status = stream.reply().await.unwrap_err();
    assert_eq!((status.code(), violation(&status).0.as_str()), (Code::InvalidArgument, "config.default_params.preset"));
}

/// A worker can write this down, and replay a text on a server with other presets and defaults.
#[tokio::test]
async fn what_presets_and_defaults_say_is_told_but_for_keys() {
    let presets = "[mine]\ndescription = \"d\"\ntop_k = 7\nbad_words = [[1, 2]]\n\
        watermark = { gumbel = { key = 7, context_width = 1 } }\n";
    let defaults =
        "min_p = 0.25\nlength_penalty = { start = 5, factor = 1.5 }\nwatermark = { kgw = { hashing_key = 77 } }\n";
    let server = server_with(presets, defaults).await;
    let info = server.client().await.get_server_info(GetServerInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(info.presets[0].params, "bad_words = [[1, 2]]\ntop_k = 7\n");
    assert_eq!(info.default_params, "length_penalty = { factor = 1.5, start = 5 }\nmin_p = 0.25\n");
    // The texts can be read back as they were written.
    let again =
        server_with(&format!("[mine]\ndescription = \"d\"\n{}", info.presets[0].params), &info.default_params).await;
    let told = again.client().await.get_server_info(GetServerInfoRequest {}).await.unwrap().into_inner();
    assert_eq!((&told.presets, told.default_params), (&info.presets, info.default_params));
    let plain = TestServer::start().await.client().await.get_server_info(GetServerInfoRequest {}).await;
    assert_eq!(plain.unwrap().into_inner().default_params, "");
}
