//! The command line of `croupier explain`.

use super::bench::DTYPES;
use super::flags::{Reader, flag, option, switch};
use super::resolve::{CONFIG, Env, resolve};
use super::{Config, defaults, file, given, values};
use crate::explain::ExplainArgs;
use crate::params::{GivenFilters, MAX_VOCAB_SIZE, SamplingParams};
use crate::row_files::RowFile;
use crate::sampling::logits::Dtype;
use clap::{Arg, ArgAction, ArgMatches};
use std::path::PathBuf;
use toml::{Table, Value};

pub(super) const EXPLAIN: &str = "explain";
/// Most tokens of each kind that are shown.
const MAX_SHOWN: u32 = 1000;
/// An upper bound of the number of rows in a file that may be read.
const MAX_ROWS: usize = 1 << 30;
const SET: &str = "set";
/// The setting of a server that has a flag here too.
const VOCABULARY: &str = "vocabulary";

const ABOUT: &str = "Run a row of logits through the samplers and show what each one leaves, and which token results";
const EXAMPLES: &str = "\
The row is an array that numpy.save wrote (float32 or float16; its last dimension is a row), bare binary numbers with --dtype, \
or numbers as text, separated by spaces or commas. A text has several rows if it has lines of one length, or lists in brackets.

Parameters come from the server's file ([defaults], --config or CROUPIER_CONFIG), then from --preset, then from each --set, written as in \
[defaults] of docs/configuration.md. The token is the one that a server draws for the same logits, parameters, prompt, output and \
seed. Stateful samplers (mirostat and adaptive-p) start with a fresh state.

  echo 2.5 1 0.5 0 -1 | croupier explain --set temperature=0.8 --set top_k=3
  croupier explain logits.npy --row 3 --preset creative --output 5,7 --seed 42
  croupier explain logits.npy --set 'banned_token_ids=[279]' --why-not 279 --json
  croupier explain logits.npy --vocabulary tokenizer.json --eos 2 --set 'grammar={regex=\"yes|no\"}'

Exit code 0 when there is a token; 1 when the row cannot be read, leaves no token, or does not fit the arguments; 2 for a mistake \
in the arguments.";

/// The clap definition of `croupier explain`.
pub(super) fn command(config: Arg) -> clap::Command {
    clap::Command::new(EXPLAIN)
        .about(ABOUT)
        .after_help(EXAMPLES)
        .arg(Arg::new("file").value_name("FILE").help("The logits; - is standard input [default: -]"))
        .arg(config)
        .arg(option(
            VOCABULARY,
            "PATH",
            "File with the text of each token: a tokenizer.json, or a JSON array by token id [default: as for the server]",
        ))
        .arg(option("preset", "NAME", "Preset whose parameters override those of the file"))
        .arg(
            option(SET, "KEY=VALUE", "A parameter, which overrides file and preset; may be repeated")
                .action(ArgAction::Append),
        )
        .arg(option("seed", "N", "The text's seed [default: 0]"))
        .arg(option("prompt", "ID,ID,...", "Tokens of the prompt [default: none]"))
        .arg(option("output", "ID,ID,...", "Tokens that follow it; the row is for the next one [default: none]"))
        .arg(option("eos", "ID,ID,...", "Tokens that end the text [default: none]"))
        .arg(option("dtype", "NAME", "Format of bare binary numbers: f32, f16 or bf16, little endian"))
        .arg(option("vocab-size", "N", "Logits per row [default: as in the array or the text, else all numbers]"))
        .arg(option("row", "N", "Which row, from 0 [default: 0]"))
        .arg(option(
            "top",
            "N",
            "How many of the most likely tokens to show, before and after the samplers [default: 10]",
        ))
        .arg(option("why-not", "ID,ID,...", "Further tokens to show, with what removed them"))
        .arg(switch("json", "Print a JSON object instead of the table; a null logit is -infinity"))
}

/// Makes the arguments from what clap parsed.
///
/// # Errors
/// Every mistake, including those found before.
pub(super) fn args(matches: &ArgMatches, env: Env<'_>, problems: Vec<String>) -> Result<ExplainArgs, Vec<String>> {
    let of_server = |name: &str| [CONFIG, VOCABULARY].contains(&name).then(|| flag(matches, name)).flatten();
    let (mut config, mut problems) = resolve(&of_server, env, problems);
    config.read_vocabulary(&mut problems);
    let params = params(matches, &config, &mut problems);
    let mut reader = Reader::new(matches, problems);
    let args = ExplainArgs {
        file: RowFile {
            path: reader.read("file", None, path),
            dtype: reader.read("dtype", None, dtype),
            vocab_size: reader.read("vocab-size", None, vocab_size),
            ..RowFile::default()
        },
        row: reader.read("row", 0, |t| values::count(t, 0..=MAX_ROWS)),
        params,
        most_listed: config.limits.max_top_logprobs,
        vocabulary: config.vocabulary,
        eos: reader.read("eos", Vec::new(), tokens),
        prompt: reader.read("prompt", Vec::new(), tokens),
        output: reader.read("output", Vec::new(), tokens),
        seed: reader.read("seed", 0, |t| values::count(t, 0..=u64::MAX)),
        top: reader.read("top", 10, |t| values::count(t, 0..=MAX_SHOWN)),
        why_not: reader.read("why-not", Vec::new(), tokens),
        json: matches.get_flag("json"),
    };
    reader.end(args)
}

/// The parameters: those of the file, then of the preset, then of the flags. Later ones take precedence.
fn params(matches: &ArgMatches, config: &Config, problems: &mut Vec<String>) -> SamplingParams {
    let mut params = config.defaults.clone();
    if let Some(name) = flag(matches, "preset") {
        match config.presets.get(&name) {
            Ok(preset) => over_thinking(&mut params, |params| {
                preset.apply(params);
                preset.filters()
            }),
            Err(error) => problems.push(format!("--preset: {}", error.message)),
        }
    }
    let mut table = Table::new();
    for text in matches.get_many::<String>(SET).into_iter().flatten() {
        match pair(text) {
            Ok((key, value)) => drop(table.insert(key, value)),
            Err(problem) => problems.push(format!("--{SET}: {problem}")),
        }
    }
    over_thinking(&mut params, |params| {
        let (name, mut wrong) = (format!("--{SET}"), Vec::new());
        let given = given::read_over(params, (&name, &table), &config.limits, &mut wrong);
        // As they were written: in files, a parameter stands in the table of this name.
        let told = |wrong: String| wrong.replacen(&format!("{name}."), &format!("{name} "), 1);
        problems.extend(wrong.into_iter().map(told));
        let filters = GivenFilters::by(|to| given.copies.iter().for_each(|copy| copy(&given.params, to)));
        *params = given.params;
        filters
    });
    params
}

/// Sets parameters over existing ones that may have a thinking budget, as a sequence does over those of its stream.
/// `set` returns which filters it sets.
fn over_thinking(params: &mut SamplingParams, set: impl FnOnce(&mut SamplingParams) -> GivenFilters) {
    let inherited = params.history.thinking_budget.take();
    let given = set(params);
    params.give_way(inherited.as_deref(), given);
    if params.history.thinking_budget.is_none() && inherited.is_some() {
        params.history.thinking_budget = inherited;
    }
}

/// Parses `key=value`. The value is read as TOML if possible, and otherwise as text.
fn pair(text: &str) -> Result<(String, Value), String> {
    let Some((key, value)) = text.split_once('=').map(|(key, value)| (key.trim(), value.trim())) else {
        return Err(format!("\"{text}\" is not KEY=VALUE, such as top_k=50"));
    };
    if key.is_empty() {
        return Err(format!("\"{text}\" names no parameter; write for example top_k=50"));
    }
    if ["seed", "preset"].contains(&key) {
        return Err(format!("{key}: give it as --{key}"));
    }
    if defaults::parameter(key).is_some_and(|_| value.is_empty()) {
        return Err(format!("{key}: has no value"));
    }
    // In a text with line breaks, nothing may be taken for another key.
    let read = file::table(&format!("value = {value}"), SET).ok().filter(|table| table.len() == 1);
    let read = read.and_then(|mut table| table.remove("value"));
    if let (None, Some(number)) = (&read, completed(value)) {
        return Err(format!("{key}: \"{value}\" is not a number as TOML has them; write {number}"));
    }
    Ok((key.to_owned(), read.unwrap_or_else(|| Value::String(value.to_owned()))))
}

/// A number that lacks the digit before or behind its point, with that digit.
fn completed(value: &str) -> Option<String> {
    value.parse::<f64>().ok()?;
    let (sign, digits) = value.split_at(usize::from(value.starts_with(['-', '+'])));
    if digits.starts_with('.') {
        Some(format!("{sign}0{digits}"))
    } else {
        digits.ends_with('.').then(|| format!("{value}0"))
    }
}

/// The path of a file of rows. `None`: standard input, which is called `-`.
pub(super) fn path(text: &str) -> Result<Option<PathBuf>, String> {
    Ok((text != "-").then(|| text.into()))
}

/// The format of a file's numbers, if it is given.
pub(super) fn dtype(text: &str) -> Result<Option<Dtype>, String> {
    values::one_of(text, &DTYPES).map(Some)
}

/// The number of logits in a row, if it is given.
pub(super) fn vocab_size(text: &str) -> Result<Option<usize>, String> {
    values::count(text, 1..=MAX_VOCAB_SIZE as usize).map(Some)
}

/// Parses token ids such as `5,7,9`. A text without any has no tokens.
pub(super) fn tokens(text: &str) -> Result<Vec<u32>, String> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let parts: Vec<&str> = text.split(',').map(str::trim).collect();
    if let Some(at) = parts.iter().position(|part| part.is_empty()) {
        return Err(format!("entry {} of {} is empty; put one comma between two token ids", at + 1, parts.len()));
    }
    parts.into_iter().map(|part| part.parse().map_err(|_| format!("\"{part}\" is not a token id"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::ThinkingFilters;
    use crate::sampling::logits::Dtype;
    use std::ffi::OsString;

    fn read(arguments: &[&str], env: Env<'_>) -> Result<ExplainArgs, Vec<String>> {
        let config = option(CONFIG, "PATH", "");
        let arguments = [&["explain"], arguments].concat();
        args(&command(config).try_get_matches_from(arguments).expect("clap reads it"), env, Vec::new())
    }

    #[test]
    fn one_goes_over_the_other() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("croupier.toml");
        std::fs::write(&file, "[defaults]\ntemperature = 0.5\ntop_k = 7\nmin_p = 0.25\n").unwrap();
        let env = |name: &str| (name == "CROUPIER_CONFIG").then(|| OsString::from(&file));
        let args =
            read(&["--preset", "creative", "--set", "top_k=9", "--set", "banned_token_ids = [3, 5]"], &env).unwrap();
        let mut preset = SamplingParams { top_k: 7, ..SamplingParams::default() };
        Config::default().presets.get("creative").unwrap().apply(&mut preset);
        assert_eq!((args.params.temperature, args.params.min_p), (preset.temperature, preset.min_p));
        assert_eq!((args.params.top_k, args.params.banned_token_ids), (9, vec![3, 5]));
        let args =
            read(&["--set", "engine_order=vllm", "--dtype", "bf16", "--row", "2", "--eos", "5, 7"], &|_| None).unwrap();
        assert_eq!(args.params.samplers.sampler_order.engine(), crate::params::EngineOrder::Vllm);
        let file = RowFile { dtype: Some(Dtype::Bf16), ..RowFile::default() };
        assert_eq!((args.file, args.row, args.eos, args.seed, args.top), (file, 2, vec![5, 7], 0, 10));
        let path = |argument| read(&[argument], &|_| None).unwrap().file.path;
        assert_eq!([path("-"), path("./-")], [None, Some(PathBuf::from("./-"))]);
    }

    #[test]
    fn the_texts_of_tokens_have_a_flag() {
        let dir = tempfile::tempdir().unwrap();
        let texts = dir.path().join("texts.json");
        std::fs::write(&texts, r#"["a", "b"]"#).unwrap();
        let flag = format!("--vocabulary={}", texts.display());
        let env = |name: &str| (name == "CROUPIER_VOCABULARY").then(|| OsString::from("/nowhere"));
        let texts_of = |flags: &[&str], env: Env<'_>| {
            read(flags, env).map(|args| args.vocabulary.map(|texts| texts.text(1).to_vec()))
        };
        assert_eq!(texts_of(&[flag.as_str()], &env), Ok(Some(b"b".to_vec())));
        assert_eq!(texts_of(&[], &|_| None), Ok(None));
        assert!(texts_of(&[], &env).unwrap_err()[0].starts_with("--vocabulary: /nowhere: "));
    }

    #[test]
    fn every_mistake_is_told() {
        let arguments = [
            "--preset",
            "cosy",
            "--set",
            "top_k",
            "--set",
            "top_p=2",
            "--set",
            "topp=1",
            "--prompt",
            "a,5",
            "--dtype",
            "f64",
            "--set",
            "seed=4",
            "--set",
            "preset=chat",
            "--set",
            "=3",
            "--set",
            "max_streams=3",
        ];
        let found = read(&arguments, &|_| None).unwrap_err();
        let starts = [
            "--preset: \"cosy\" is not a preset of this server; known: ",
            "--set: \"top_k\" is not KEY=VALUE",
            "--set: seed: give it as --seed",
            "--set: preset: give it as --preset",
            "--set: \"=3\" names no parameter; write for example top_k=50",
            "--set max_streams: is a setting of the server; it belongs at the top level of its file",
            "--set topp: unknown key; did you mean top_p?",
            "--set top_p: is 2, must be in ",
            "--dtype: \"f64\" is not one of f32, f16, bf16",
            "--prompt: \"a\" is not a token id",
        ];
        assert_eq!(found.len(), starts.len(), "{found:?}");
        for (found, start) in found.iter().zip(starts) {
            assert!(found.starts_with(start), "{found} is not {start}");
        }
    }

    #[test]
    fn what_is_missing_in_a_number_or_a_list_is_told() {
        let told = |flags: [&str; 2]| read(&flags, &|_| None).map(|args| (args.params.top_p, args.prompt));
        for (value, meant) in [(".9", "0.9"), ("1.", "1.0"), ("+.5", "+0.5")] {
            let expected = format!("--set: top_p: \"{value}\" is not a number as TOML has them; write {meant}");
            let (wrong, right) = (format!("top_p={value}"), format!("top_p={meant}"));
            assert_eq!(told(["--set", wrong.as_str()]), Err(vec![expected]));
            told(["--set", right.as_str()]).unwrap();
        }
        assert!(told(["--set", "top_p=x."]).unwrap_err()[0].starts_with("--set top_p: \"x.\" is not a number"));
        let empty =
            |at, of| Err(vec![format!("--prompt: entry {at} of {of} is empty; put one comma between two token ids")]);
        assert_eq!(told(["--prompt", "1,,2"]), empty(2, 3));
        assert_eq!(told(["--prompt", "1, 2, "]), empty(3, 3));
        assert_eq!(told(["--prompt", " "]), Ok((1.0, vec![])));
    }

    #[test]
    fn a_mistake_names_the_file_that_sets_the_parameter_at_fault() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("croupier.toml");
        let found = |lines: &str, set: &str| {
            std::fs::write(&path, format!("[defaults]\n{lines}\n")).expect("it is written");
            let config = format!("--config={}", path.display());
            read(&[config.as_str(), "--set", set], &|_| None).unwrap_err()
        };
        let lacks = "has no place for tfs, which is on; turn it off, or give your own order in sampler_order, which keeps the rules of vllm";
        let inherited = "engine_order of the server's file or the preset";
        assert_eq!(found("engine_order = \"vllm\"", "tfs=0.5"), [format!("{inherited}: {lacks}")]);
        assert_eq!(found("tfs = 0.5", "engine_order=vllm"), [format!("--set engine_order: {lacks}")]);
        let lacks = "has no place for tfs, which is on; add it or turn it off";
        let inherited = "sampler_order of the server's file or the preset";
        assert_eq!(found("sampler_order = [\"top_k\"]", "tfs=0.5"), [format!("{inherited}: {lacks}")]);
        // Nobody set this one.
        assert!(found("", "penalty_decay_n=5")[0].starts_with("--set penalty_last_n: is 0, but penalty_decay_n"));
    }

    /// The same holds for a sequence that sets parameters over those of its stream.
    #[test]
    fn filters_that_are_set_go_before_those_of_a_thinking_in_the_file() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("croupier.toml");
        let thinking = "start_token_ids = [1]\nend_token_ids = [2]\nbudget = 9\ntemperature = 2\ntop_k = 5\ntop_p = 0.5\nmin_p = 0.1";
        std::fs::write(&path, format!("[defaults.thinking_budget]\n{thinking}\n")).expect("it is written");
        let filters = |flags: &[&str]| {
            let config = format!("--config={}", path.display());
            let args = read(&[&[config.as_str()], flags].concat(), &|_| None).expect("no mistake");
            args.params.history.thinking_budget.as_ref().expect("thinking").filters
        };
        let all = filters(&[]);
        assert_eq!((all.temperature, all.top_k, all.top_p, all.min_p), (Some(2.0), Some(5), Some(0.5), Some(0.1)));
        assert_eq!(filters(&["--set", "top_p=0.9"]), ThinkingFilters { top_p: None, ..all });
        assert_eq!(
            filters(&["--set", "min_p=0.3", "--set", "top_k=4294967295"]),
            ThinkingFilters { min_p: None, top_k: None, ..all }
        );
        assert_eq!(filters(&["--preset", "classification"]), ThinkingFilters { temperature: None, ..all });
        assert!(filters(&["--set", "thinking_budget={}", "--set", "top_p=0.9"]).is_off());
    }
}
