//! The command line of `croupier detect`.

use super::flags::{Reader, flag, option, switch};
use super::{file, values};
use crate::params::watermark::{GumbelParams, KgwParams, SeedingScheme, SynthidParams, Watermark};
use crate::watermark::command::DetectArgs;
use crate::watermark::texts::MAX_LINE_BYTES;
use clap::{Arg, ArgMatches};
use serde_json::{Map, Value};
use std::path::Path;

pub(super) const DETECT: &str = "detect";
/// Texts with a smaller p-value are said to be marked.
const ALPHA: f64 = 1e-3;
/// The longest line that may be asked for.
const MOST_LINE_BYTES: u64 = 1 << 30;
const PARAMS: &str = "params";
const SCHEME: &str = "scheme";

/// A scheme, and its parameters that are flags.
type Scheme = (&'static str, &'static [&'static str]);

const SCHEMES: [Scheme; 3] = [
    ("kgw", &["hashing-key", "greenlist-ratio", "seeding-scheme", "context-width"]),
    ("synthid", &["keys", "ngram-len", "context-history-size", "sampling-table-size", "sampling-table-seed"]),
    ("gumbel", &["key", "context-width", "context-history-size"]),
];

/// Parameters of the schema that say nothing to who looks for the mark.
const OF_THE_MAKER: [&str; 2] = ["bias", "skip_first_ngram_calls"];

const ABOUT: &str = "Look for a mark in texts of token ids";
const EXAMPLES: &str = "\
Each line of the input is a text: [15, 7, 301] or {\"tokens\": [15, 7, 301], \"prompt_tokens\": 1}. The first prompt_tokens of \
them were not made with the mark: they are context alone. Give them, or nothing is known of the first tokens behind them.

The p-value is the probability that text without this mark has as much of it, or more. It holds for one text: of a thousand \
texts without a mark, one is below 0.001. Marks need length: a few hundred tokens are plenty, where few tokens were as good as \
certain. An n-gram that comes again counts once.

Scheme, keys and all parameters must be those that the text was made with, by the names of WatermarkParams in the schema: as flags, or \
in a file of TOML or JSON, such as
  [kgw]
  hashing_key = 15485863
  greenlist_ratio = 0.25
Keys on a command line can be seen by others on the machine; a file need not be.

  croupier detect --params mark.toml texts.jsonl
  croupier detect --scheme gumbel --key 42 --json < texts.jsonl

Exit code 0 when every text was looked at, marked or not; 1 when something could not be read, which is told with its line; 2 for a \
mistake in the arguments.";

/// `croupier detect` as clap sees it.
pub(super) fn command() -> clap::Command {
    clap::Command::new(DETECT)
        .about(ABOUT)
        .after_help(EXAMPLES)
        .arg(Arg::new("file").value_name("FILE").help("The texts, a line each [default: standard input]"))
        .arg(option(SCHEME, "NAME", "kgw, synthid or gumbel [default: that of --params]"))
        .arg(option(PARAMS, "PATH", "The mark's parameters, in a table called as the scheme; flags go before it"))
        .arg(option("hashing-key", "KEY", "kgw: the secret [default: 15485863]"))
        .arg(option("greenlist-ratio", "SHARE", "kgw: share of the vocabulary that is green [default: 0.25]"))
        .arg(option("seeding-scheme", "NAME", "kgw: lefthash or selfhash [default: lefthash]"))
        .arg(option("keys", "KEY,KEY,...", "synthid: the secret, one for each layer"))
        .arg(option("ngram-len", "N", "synthid: the context and the token [default: 5]"))
        .arg(option("sampling-table-size", "BITS", "synthid: size of the table of g-values [default: 65536]"))
        .arg(option("sampling-table-seed", "N", "synthid: what the table is made from [default: 0]"))
        .arg(option("key", "KEY", "gumbel: the secret"))
        .arg(option(
            "context-width",
            "N",
            "kgw, gumbel: how many tokens before decide [default: 1; 4 for selfhash and gumbel]",
        ))
        .arg(option(
            "context-history-size",
            "N",
            "synthid, gumbel: a context of the last N positions is not marked again [default: 1024]",
        ))
        .arg(option("alpha", "P", "Say that texts with a smaller p-value are marked [default: 0.001]"))
        .arg(option("max-line-bytes", "BYTES", "Longest line that is read [default: 16MiB]"))
        .arg(switch("json", "A line of JSON for each text instead of a table"))
}

/// The arguments that clap read.
///
/// # Errors
/// Every mistake, with those found before.
pub(super) fn args(matches: &ArgMatches, mut problems: Vec<String>) -> Result<DetectArgs, Vec<String>> {
    let mark = mark(matches, &mut problems);
    let mut reader = Reader::new(matches, problems);
    let share = |t: &str| match t.parse::<f64>() {
        Ok(alpha) if alpha > 0.0 && alpha < 1.0 => Ok(alpha),
        _ => Err(format!("\"{t}\" is not a probability between 0 and 1")),
    };
    let bytes = |t: &str| values::size(t, 1..=MOST_LINE_BYTES).map(|bytes| bytes as usize);
    let args = DetectArgs {
        file: reader.read("file", None, |t| Ok(Some(t.into()))),
        mark: mark.unwrap_or(Watermark::Kgw(KgwParams::default())),
        alpha: reader.read("alpha", ALPHA, share),
        json: matches.get_flag("json"),
        max_line_bytes: reader.read("max-line-bytes", MAX_LINE_BYTES, bytes),
    };
    reader.end(args)
}

/// The mark, from the file and the flags over it; `None` if there is a mistake.
fn mark(matches: &ArgMatches, problems: &mut Vec<String>) -> Option<Watermark> {
    let before = problems.len();
    let (named, mut given) = match flag(matches, PARAMS) {
        Some(path) => from_file(Path::new(&path), problems)?,
        None => (None, Map::new()),
    };
    let Some(name) = flag(matches, SCHEME).or_else(|| named.clone()) else {
        problems
            .push("--scheme: is required: kgw, synthid or gumbel; or --params with the mark's parameters".to_owned());
        return None;
    };
    let Some(&(scheme, flags)) = SCHEMES.iter().find(|(scheme, _)| *scheme == name) else {
        problems.push(format!("--scheme: \"{name}\" is none of kgw, synthid, gumbel"));
        return None;
    };
    if named.is_some_and(|named| named != scheme) {
        problems.push(format!("--scheme: {scheme} is not the scheme of --params"));
    }
    let mut all: Vec<&str> = SCHEMES.iter().flat_map(|(_, flags)| *flags).copied().collect();
    all.sort_unstable();
    all.dedup();
    for name in all {
        let Some(text) = flag(matches, name) else { continue };
        if flags.contains(&name) {
            given.insert(name.replace('-', "_"), Value::String(text));
        } else {
            problems.push(format!("--{name}: is no parameter of {scheme}"));
        }
    }
    let mut fields = Fields { given, problems };
    let mark = match scheme {
        "kgw" => Watermark::Kgw(kgw(&mut fields)),
        "synthid" => Watermark::Synthid(synthid(&mut fields)),
        _ => Watermark::Gumbel(gumbel(&mut fields)),
    };
    fields.end();
    if problems.len() == before
        && let Err(error) = mark.validate()
    {
        problems.push(error.to_string());
    }
    (problems.len() == before).then_some(mark)
}

/// The scheme and its parameters that a file gives.
fn from_file(path: &Path, problems: &mut Vec<String>) -> Option<(Option<String>, Map<String, Value>)> {
    let text = file::text(path, problems)?;
    let parsed = if path.extension().is_some_and(|extension| extension == "json") {
        serde_json::from_str(&text).map_err(|e| e.to_string())
    } else {
        toml::from_str::<Map<String, Value>>(&text).map_err(|e| e.to_string())
    };
    let place = path.display();
    match parsed.map(|map: Map<String, Value>| map.into_iter().collect::<Vec<_>>()) {
        Err(error) => problems.push(format!("{place}: {}", error.split_whitespace().collect::<Vec<_>>().join(" "))),
        Ok(mut tables) => match (tables.pop(), tables.is_empty()) {
            (Some((name, Value::Object(given))), true) => return Some((Some(name), given)),
            _ => problems.push(format!("{place}: must be one table, called kgw, synthid or gumbel")),
        },
    }
    None
}

/// Parameters as they were given.
struct Fields<'p> {
    given: Map<String, Value>,
    problems: &'p mut Vec<String>,
}

impl Fields<'_> {
    /// Takes a parameter out, as `read` understands its text.
    fn take<T>(&mut self, name: &str, default: T, read: impl Fn(&str) -> Option<T>) -> T {
        let text = match self.given.remove(name) {
            None => return default,
            Some(Value::String(text)) => text,
            Some(Value::Array(entries)) => entries.iter().map(plain).collect::<Vec<_>>().join(","),
            Some(value) => value.to_string(),
        };
        read(&text).unwrap_or_else(|| {
            self.problems.push(format!("{name}: {text} is not a value for it"));
            default
        })
    }

    /// Whatever is left is no parameter.
    fn end(self) {
        for name in self.given.keys().filter(|name| !OF_THE_MAKER.contains(&name.as_str())) {
            self.problems.push(format!("{name}: is no parameter of this scheme"));
        }
    }
}

/// A number as it stands, or as JSON writes large ones.
fn plain(value: &Value) -> String {
    if let Value::String(text) = value { text.clone() } else { value.to_string() }
}

fn whole<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.trim().parse().ok()
}

fn kgw(fields: &mut Fields<'_>) -> KgwParams {
    // As on the command line, or as in the schema.
    let scheme = |text: &str| match text.trim_start_matches("SEEDING_SCHEME_").to_ascii_lowercase().as_str() {
        "lefthash" => Some(SeedingScheme::Lefthash),
        "selfhash" => Some(SeedingScheme::Selfhash),
        _ => None,
    };
    let default = KgwParams::with_scheme(fields.take("seeding_scheme", SeedingScheme::Lefthash, scheme));
    KgwParams {
        hashing_key: fields.take("hashing_key", default.hashing_key, whole),
        greenlist_ratio: fields.take("greenlist_ratio", default.greenlist_ratio, whole),
        context_width: fields.take("context_width", default.context_width, whole),
        ..default
    }
}

fn synthid(fields: &mut Fields<'_>) -> SynthidParams {
    let keys = fields.take("keys", Vec::new(), |text| text.split(',').map(whole).collect());
    let default = SynthidParams::new(keys);
    SynthidParams {
        ngram_len: fields.take("ngram_len", default.ngram_len, whole),
        context_history_size: fields.take("context_history_size", default.context_history_size, whole),
        sampling_table_size: fields.take("sampling_table_size", default.sampling_table_size, whole),
        sampling_table_seed: fields.take("sampling_table_seed", default.sampling_table_seed, whole),
        ..default
    }
}

fn gumbel(fields: &mut Fields<'_>) -> GumbelParams {
    if !fields.given.contains_key("key") {
        fields.problems.push("key: is required".to_owned());
    }
    let default = GumbelParams::new(fields.take("key", 0, whole));
    GumbelParams {
        context_width: fields.take("context_width", default.context_width, whole),
        context_history_size: fields.take("context_history_size", default.context_history_size, whole),
        ..default
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &[&str]) -> Result<DetectArgs, Vec<String>> {
        let matches = command().try_get_matches_from([&["detect"], arguments].concat()).expect("clap reads it");
        args(&matches, Vec::new())
    }

    fn file(name: &str, text: &str) -> (tempfile::TempDir, String) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        let path = path.to_str().unwrap().to_owned();
        (dir, path)
    }

    #[test]
    fn flags_say_what_to_look_for() {
        let args = read(&["--scheme", "kgw", "--hashing-key", "18446744073709551615", "--seeding-scheme", "selfhash"]);
        let expected = KgwParams { hashing_key: u64::MAX, ..KgwParams::with_scheme(SeedingScheme::Selfhash) };
        let args = args.unwrap();
        assert_eq!((args.mark, args.alpha, args.json), (Watermark::Kgw(expected), 1e-3, false));
        let args = read(&["--scheme", "synthid", "--keys", "1, 2,3", "--ngram-len", "4", "--json", "texts"]).unwrap();
        let expected = SynthidParams { ngram_len: 4, ..SynthidParams::new(vec![1, 2, 3]) };
        assert_eq!((args.mark, args.file, args.json), (Watermark::Synthid(expected), Some("texts".into()), true));
        let args = read(&["--scheme", "gumbel", "--key", "7", "--alpha", "0.01"]).unwrap();
        assert_eq!((args.mark, args.alpha), (Watermark::Gumbel(GumbelParams::new(7)), 0.01));
    }

    #[test]
    fn a_file_says_it_too_and_flags_go_before_it() {
        let (_dir, path) = file("mark.toml", "[kgw]\nhashing_key = 5\nbias = 3.5\ncontext_width = 2\n");
        let args = read(&["--params", &path, "--context-width", "3"]).unwrap();
        let expected = KgwParams { hashing_key: 5, context_width: 3, ..KgwParams::default() };
        assert_eq!(args.mark, Watermark::Kgw(expected));
        let (_dir, path) = file("mark.json", r#"{"synthid": {"keys": ["18446744073709551615", 2], "ngram_len": 3}}"#);
        let expected = SynthidParams { ngram_len: 3, ..SynthidParams::new(vec![u64::MAX, 2]) };
        assert_eq!(read(&["--params", &path]).unwrap().mark, Watermark::Synthid(expected));
    }

    #[test]
    fn every_mistake_is_told() {
        let problems = |arguments: &[&str]| read(arguments).unwrap_err();
        assert!(problems(&[])[0].starts_with("--scheme: is required"));
        assert_eq!(problems(&["--scheme", "red"]), ["--scheme: \"red\" is none of kgw, synthid, gumbel"]);
        let found = problems(&["--scheme", "gumbel", "--keys", "1", "--context-width", "x", "--alpha", "2"]);
        let expected = [
            "--keys: is no parameter of gumbel",
            "key: is required",
            "context_width: x is not a value for it",
            "--alpha: \"2\" is not a probability between 0 and 1",
        ];
        assert_eq!(found, expected);
        let found = problems(&["--scheme", "kgw", "--greenlist-ratio", "1.5"]);
        assert_eq!(found, ["kgw.greenlist_ratio: is 1.5, must be in 0.001 ..= 0.999"]);
        assert!(problems(&["--scheme", "synthid"])[0].starts_with("synthid.keys: has 0 entries"));
        let (_dir, path) = file("mark.toml", "[kgw]\nhashing_kee = 5\n");
        assert_eq!(problems(&["--params", &path]), ["hashing_kee: is no parameter of this scheme"]);
        assert_eq!(
            problems(&["--params", &path, "--scheme", "gumbel"])[0],
            "--scheme: gumbel is not the scheme of --params"
        );
        let (_dir, path) = file("mark.toml", "key = 5\n");
        assert!(problems(&["--params", &path])[0].ends_with("must be one table, called kgw, synthid or gumbel"));
    }
}
