//! `croupier explain`: shows, without a server, how one row of logits goes through the samplers. The token is the one
//! that a server gives for the same logits, parameters, history, seed and position.
//!
//! [`row_files`](crate::row_files) reads the row, [`opening`] opens the text,
//! [`sampling::stages`](crate::sampling::stages) follows the row, [`changed`] compares parameters with what was used,
//! [`table`] shows the result.

mod changed;
mod opening;
mod table;

use crate::output::{self, counted};
use crate::params::report::ReportParams;
use crate::params::{Sampler, SamplingParams};
use crate::row_files::{RowFile, Rows};
use crate::sampling::distribution::Distribution;
use crate::sampling::fault;
use crate::sampling::logits::Logits;
use crate::sampling::mask::TokenMask;
use crate::sampling::philox::Purpose;
use crate::sampling::report::{self, Removed, ReportSpec, WhyNot};
use crate::sampling::row::{Filters, RowError, RowSpec};
use crate::sampling::sample_row;
use crate::sampling::stages::{Stage, StageKind, stages};
use crate::sequence::FinishReason;
use crate::vocabulary::Vocabulary;
use changed::Changed;
use serde::Serialize;
use std::process::ExitCode;
use std::sync::Arc;

/// The name of the stage that takes the most likely token.
const GREEDY: &str = "greedy";

/// The arguments of `croupier explain`.
#[derive(Debug, Clone)]
pub struct ExplainArgs {
    /// The file with the row.
    pub file: RowFile,
    /// Which row of the file, from 0.
    pub row: usize,
    /// The sampling parameters.
    pub params: SamplingParams,
    /// Most entries that a list of tokens in the explanation may have.
    pub most_listed: u32,
    /// The texts of tokens, if they are known.
    pub vocabulary: Option<Arc<Vocabulary>>,
    /// Tokens that end the text.
    pub eos: Vec<u32>,
    /// The text's prompt.
    pub prompt: Vec<u32>,
    /// The text's output so far. The row is for the token after it.
    pub output: Vec<u32>,
    /// The text's seed.
    pub seed: u64,
    /// How many of the most likely tokens are shown.
    pub top: u32,
    /// More tokens to explain.
    pub why_not: Vec<u32>,
    /// Print a JSON object instead of tables.
    pub json: bool,
}

/// The explanation of a row. Its fields are those of the JSON object.
#[derive(Debug, Clone, Serialize, PartialEq)]
struct Explanation {
    /// Which row of the file, and how many it has.
    row: usize,
    rows: usize,
    vocab_size: usize,
    dtype: &'static str,
    /// Tokens whose logit was sent as −∞.
    masked_as_sent: usize,
    seed: u64,
    position: usize,
    stages: Vec<ExplainedStage>,
    token: u32,
    /// In the distribution that the token was drawn from.
    logprob: f32,
    raw_logprob: f32,
    /// By logits after masks, bias and penalties.
    rank: u32,
    finish_reason: Option<&'static str>,
    /// The most likely tokens of the row as sent, and of the distribution that was drawn from; the drawn token; and the
    /// tokens that were asked about. Sorted by falling probability.
    tokens: Vec<ExplainedToken>,
}

/// What one stage left of the row.
#[derive(Debug, Clone, Serialize, PartialEq)]
struct ExplainedStage {
    stage: &'static str,
    /// What became of its parameter, if that was not used as it was given.
    #[serde(flatten)]
    changed: Option<Changed>,
    tokens_left: usize,
    kept: f64,
    entropy_bits: f64,
}

/// The explanation of one token.
#[derive(Debug, Clone, Serialize, PartialEq)]
struct ExplainedToken {
    token: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// As sent. `null` in JSON: −∞.
    logit: f32,
    /// After masks, bias and penalties. `null` in JSON: −∞.
    adjusted_logit: f32,
    raw_probability: f64,
    probability: f32,
    /// The stage that removed it. `None`: it could have been drawn.
    removed_by: Option<&'static str>,
}

/// The subcommand `explain`. The exit code is 0 if there is a token, and 1 if the row gives none or cannot be read.
#[must_use]
pub fn main(args: &ExplainArgs) -> ExitCode {
    let text = explain(args).and_then(|explanation| {
        if !args.json {
            return Ok(table::render(&explanation));
        }
        serde_json::to_string_pretty(&explanation).map(|json| json + "\n").map_err(|error| error.to_string())
    });
    match text {
        Ok(text) if output::said("croupier explain", &text) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(problem) => {
            output::complain(&format!("croupier explain: {problem}"));
            ExitCode::FAILURE
        }
    }
}

/// Reads the row, opens its text, and explains how the next token is chosen.
fn explain(args: &ExplainArgs) -> Result<Explanation, String> {
    let (whence, rows) = (args.file.name(), args.file.read()?);
    let logits = row_of(&rows, args.row).map_err(|problem| format!("{whence}: {problem}"))?;
    let mut sequence = opening::open(args, logits.vocab_size() as u32)?;
    let mask = opening::mask(&sequence)?;
    let mask = mask.as_deref().map(|words| TokenMask::new(words, logits.vocab_size()));
    let spec = RowSpec { mask, ..sequence.spec(sequence.draw(Purpose::Sample)) };
    let mut explanation =
        explain_row(args, &logits, &spec).map_err(|error| format!("{whence}: {}", fault::told(error, &logits)))?;
    explanation.rows = rows.count();
    explanation.finish_reason = sequence.commit(explanation.token).map(FinishReason::label);
    Ok(explanation)
}

fn row_of(rows: &Rows, row: usize) -> Result<Logits<'_>, String> {
    rows.get(row).ok_or_else(|| {
        let (last, logits) = (rows.count() - 1, counted(rows.vocab_size as u64, "logit"));
        format!("has no row {row} (--row); its rows are 0 to {last}, of {logits} each")
    })
}

/// Explains a row with the parameters that its text has at this position.
fn explain_row(args: &ExplainArgs, logits: &Logits<'_>, spec: &RowSpec<'_>) -> Result<Explanation, RowError> {
    let token = sample_row(logits, spec)?.token;
    let drawn = Distribution::of(logits, spec)?;
    let sent = Distribution::of(logits, &RowSpec::plain(Filters::OFF, spec.action))?;
    let likeliest = |distribution: &Distribution| -> Vec<u32> {
        distribution.kept().iter().take(args.top as usize).map(|w| w.candidate.token).collect()
    };
    let mut shown = [likeliest(&drawn), likeliest(&sent), vec![token], args.why_not.clone()].concat();
    shown.sort_unstable();
    shown.dedup();
    let wanted = ReportParams { why_not_token_ids: shown, ..ReportParams::default() };
    let report = spec.report.map(|report| ReportSpec { params: &wanted, ..report });
    let fates = report::why_not(logits, &RowSpec { report, ..*spec })?;
    let mut tokens: Vec<ExplainedToken> =
        fates.iter().map(|fate| explain_token(args, fate, sent.logprob(fate.token))).collect();
    tokens.sort_by(|a, b| {
        b.probability.total_cmp(&a.probability).then(b.logit.total_cmp(&a.logit)).then(a.token.cmp(&b.token))
    });
    Ok(Explanation {
        row: args.row,
        rows: 1,
        vocab_size: logits.vocab_size(),
        dtype: logits.dtype().name(),
        masked_as_sent: logits.vocab_size() - sent.kept().len(),
        seed: args.seed,
        position: args.output.len(),
        stages: stages(logits, spec)?.iter().map(|stage| explain_stage(args, stage, &spec.filters)).collect(),
        token,
        logprob: drawn.logprob(token),
        raw_logprob: sent.logprob(token),
        rank: drawn.rank(token),
        finish_reason: None,
        tokens,
    })
}

fn explain_token(args: &ExplainArgs, fate: &WhyNot, raw_logprob: f32) -> ExplainedToken {
    ExplainedToken {
        token: fate.token,
        text: args.vocabulary.as_ref().map(|texts| String::from_utf8_lossy(texts.text(fate.token)).into_owned()),
        logit: fate.raw,
        adjusted_logit: fate.adjusted,
        raw_probability: f64::from(raw_logprob).exp(),
        probability: fate.probability,
        removed_by: fate.removed.map(Removed::name),
    }
}

fn explain_stage(args: &ExplainArgs, stage: &Stage, filters: &Filters) -> ExplainedStage {
    let name = match stage.kind {
        StageKind::Sent => "as sent",
        StageKind::Adjusted => "masks, bias, penalties",
        StageKind::Greedy => GREEDY,
        StageKind::AtMost(_) => Sampler::TopK.kind_name(),
        StageKind::Sampler(sampler) => sampler.kind_name(),
        StageKind::Watermark => "watermark",
    };
    ExplainedStage {
        stage: name,
        changed: Changed::of(stage.kind, filters, &args.params),
        tokens_left: stage.left,
        kept: stage.kept,
        entropy_bits: stage.entropy / std::f64::consts::LN_2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::grammar::{GrammarKind, GrammarParams, GrammarStart};
    use crate::params::watermark::{GumbelParams, SynthidParams, Watermark};
    use crate::params::{EngineOrder, SamplerOrder};

    fn args(params: SamplingParams) -> ExplainArgs {
        ExplainArgs {
            file: RowFile::default(),
            row: 0,
            params,
            most_listed: 20,
            vocabulary: None,
            eos: Vec::new(),
            prompt: Vec::new(),
            output: vec![1, 1],
            seed: 5,
            top: 2,
            why_not: vec![3],
            json: false,
        }
    }

    /// Explains a row with probabilities 4/8, 2/8, 1/8 and 1/8.
    fn of_four(args: &ExplainArgs) -> Result<Explanation, String> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("row");
        std::fs::write(&file, "1.3862944 0.6931472 0 0").unwrap();
        explain(&ExplainArgs { file: RowFile { path: Some(file), ..RowFile::default() }, ..args.clone() })
    }

    #[test]
    fn it_tells_the_way_of_a_row() {
        let params = SamplingParams { banned_token_ids: vec![0], top_k: 2, ..SamplingParams::default() };
        let told = of_four(&args(params)).unwrap();
        let stages: Vec<_> = told.stages.iter().map(|stage| (stage.stage, stage.tokens_left)).collect();
        assert_eq!(stages, [("as sent", 4), ("masks, bias, penalties", 3), ("top_k", 2)]);
        let tokens: Vec<_> = told.tokens.iter().map(|token| (token.token, token.removed_by)).collect();
        assert_eq!(tokens, [(1, None), (2, None), (0, Some("banned_token_ids")), (3, Some("top_k"))]);
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-6, "{a} is not {b}");
        near(told.tokens[0].raw_probability, 0.25);
        near(told.tokens[0].probability.into(), 2.0 / 3.0);
        near(told.tokens[2].raw_probability, 0.5);
        assert_eq!((told.position, told.seed, told.masked_as_sent), (2, 5, 0));
        let drawn = told.tokens.iter().find(|token| token.token == told.token).unwrap();
        near(f64::from(told.logprob).exp(), drawn.probability.into());
        near(f64::from(told.raw_logprob).exp(), drawn.raw_probability);
        let table = table::render(&told);
        assert!(
            table.contains("removed by top_k") && table.contains(&format!("\nThe token is {}: ", told.token)),
            "{table}"
        );
        assert!(table.contains(&format!(">{:>8} ", told.token)), "{table}");
    }

    #[test]
    fn one_row_of_several_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = RowFile { path: Some(dir.path().join("rows")), ..RowFile::default() };
        std::fs::write(dir.path().join("rows"), "1 0 0 0\n0 9 0 0\n").unwrap();
        let told = explain(&ExplainArgs { file, row: 1, ..args(SamplingParams::default()) }).unwrap();
        assert_eq!((told.row, told.rows, told.vocab_size, told.tokens[0].token), (1, 2, 4, 1));
        assert!(table::render(&told).starts_with("row 1 of rows 0 to 1: 4 logits (f32), 0 of them"));
        assert!(table::render(&Explanation { row: 0, rows: 1, ..told }).starts_with("4 logits"));
    }

    #[test]
    fn every_way_has_stages() {
        let usual = SamplingParams::default();
        let greedy = SamplingParams { temperature: 0.0, ..usual.clone() };
        let mut xtc = SamplingParams { min_p: 0.3, ..usual.clone() };
        (xtc.samplers.xtc_probability, xtc.samplers.xtc_threshold) = (1.0, 0.2);
        let marked = |mark| {
            let mut params = usual.clone();
            params.history.watermark = Some(Arc::new(mark));
            params
        };
        let gumbel = marked(Watermark::Gumbel(GumbelParams::new(7)));
        let synthid = marked(Watermark::Synthid(SynthidParams::new(vec![1, 2, 3])));
        let last = |params| of_four(&args(params)).unwrap().stages.pop().unwrap();
        assert_eq!((last(greedy).stage, last(xtc.clone()).stage), ("greedy", "xtc"));
        assert_eq!(last(synthid).stage, "watermark");
        assert_eq!(last(xtc).tokens_left, 1);
        // After two tokens the race does not mark yet, after four it does.
        assert_eq!(last(gumbel.clone()).stage, "masks, bias, penalties");
        let told = of_four(&ExplainArgs { prompt: vec![1, 2], top: 4, ..args(gumbel) }).unwrap();
        let (race, drawn) = (told.stages.last().unwrap(), told.tokens.iter().find(|t| t.token == told.token).unwrap());
        assert_eq!((race.stage, race.tokens_left), ("watermark", 1));
        assert!((race.kept - f64::from(drawn.probability)).abs() < 1e-6, "{race:?}, {drawn:?}");
        let lost = told.tokens.iter().filter(|t| t.removed_by == Some("watermark"));
        assert_eq!(lost.count(), 3);
    }

    #[test]
    fn values_that_were_not_used_as_given_are_told() {
        let in_order_of = |engine, temperature| {
            let mut params = SamplingParams { temperature, ..SamplingParams::default() };
            params.samplers.sampler_order = SamplerOrder::Engine(engine);
            params
        };
        let (mut decays, mut warms) = (SamplingParams::default(), in_order_of(EngineOrder::Croupier, 0.5));
        (decays.top_p, decays.samplers.top_p_decay) = (0.8, 0.5);
        (warms.samplers.temperature_end, warms.samplers.temperature_tokens) = (2.5, 4);
        for (params, name, json) in [
            (in_order_of(EngineOrder::Croupier, 0.005), "temperature", ""),
            (in_order_of(EngineOrder::Vllm, 0.005), "temperature 0.01 (0.005 given)", r#""used":0.01,"given":0.005,"#),
            (
                in_order_of(EngineOrder::Exllama, 0.005),
                "greedy (temperature 0.005 given)",
                r#""used":0.0,"given":0.005,"#,
            ),
            (in_order_of(EngineOrder::KoboldCpp, 1.0), "top_k 3000 (0 given)", r#""used":3000,"given":0,"#),
            // Two tokens came before.
            (decays, "top_p 0.2 (0.8 given)", r#""used":0.2,"given":0.8,"#),
            (warms, "temperature 1.5 (0.5 given)", r#""used":1.5,"given":0.5,"#),
        ] {
            let told = of_four(&args(params)).unwrap();
            let table = table::render(&told);
            let last = table.split("\n\n").nth(1).and_then(|stages| stages.lines().last()).unwrap();
            assert_eq!(last.split("  ").next(), Some(name), "{table}");
            let written = serde_json::to_string(told.stages.last().unwrap()).unwrap();
            assert!(written.contains(&format!("\",{json}\"tokens_left\"")), "{written}");
        }
    }

    #[test]
    fn what_cannot_be_is_told() {
        let usual = args(SamplingParams::default());
        let told = |args: ExplainArgs| of_four(&args).unwrap_err();
        assert_eq!(
            told(ExplainArgs { prompt: vec![9], ..usual.clone() }),
            "--prompt: token 9 must be below 4, the number of logits in the row"
        );
        let ended = SamplingParams { max_tokens: 2, ..SamplingParams::default() };
        assert!(told(args(ended)).starts_with("--output: already ends the text ("));
        let none = SamplingParams { banned_token_ids: vec![0, 1, 2, 3], ..SamplingParams::default() };
        assert!(told(args(none)).contains("no token of the row is left"));
        let mut grammar = SamplingParams { stop_token_ids: vec![3], ..SamplingParams::default() };
        let start = GrammarStart { position: 1, ..GrammarStart::default() };
        let regex = GrammarParams { kind: GrammarKind::Regex, text: "ab*".to_owned(), start };
        grammar.history.grammar = Some(Arc::new(regex));
        assert!(
            told(args(grammar.clone())).starts_with("grammar: needs the texts of tokens; give --vocabulary, or turn")
        );
        let mut infill = SamplingParams::default();
        infill.samplers.infill = true;
        assert!(told(args(infill)).starts_with("infill: needs the texts of tokens; give --vocabulary, or turn"));
        let mut dry = SamplingParams::default();
        (dry.history.dry_multiplier, dry.history.dry_sequence_breaker_texts) = (0.8, vec!["\n".to_owned()]);
        let told_of_dry = told(args(dry));
        assert!(told_of_dry.starts_with("dry_sequence_breaker_texts: needs"), "{told_of_dry}");
        assert!(told_of_dry.ends_with("turn it off with --set dry_multiplier=0"), "{told_of_dry}");
        let texts = ["a", "b", "c", ""].map(|text| Some(text.as_bytes().to_vec()));
        let known = ExplainArgs { vocabulary: Some(Arc::new(Vocabulary::new(&texts, b""))), ..args(grammar) };
        assert_eq!(told(known.clone()), "--output[1]: is not allowed by the grammar at this position");
        let told_of = of_four(&ExplainArgs { output: vec![1, 0], ..known }).unwrap();
        let fates: Vec<_> = told_of.tokens.iter().map(|token| (token.token, token.removed_by)).collect();
        assert_eq!(fates, [(1, None), (3, None), (0, Some("token_mask"))]);
        let wide = SamplingParams { banned_token_ids: vec![7], ..SamplingParams::default() };
        assert!(told(args(wide)).starts_with("banned_token_ids"));
        let nowhere = ExplainArgs { file: RowFile { path: Some("/nowhere".into()), ..RowFile::default() }, ..usual };
        assert!(explain(&nowhere).unwrap_err().starts_with("/nowhere: "));
        let beyond = of_four(&ExplainArgs { row: 1, ..args(SamplingParams::default()) }).unwrap_err();
        assert!(beyond.ends_with("has no row 1 (--row); its rows are 0 to 0, of 4 logits each"), "{beyond}");
    }
}
