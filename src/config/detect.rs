//! The command line of `croupier detect`.

use super::flags::{Reader, flag, option, switch};
use super::parts::{Read, Wrong};
use super::{file, marks, values};
use crate::params::FieldError;
use crate::params::watermark::{KgwParams, Watermark};
use crate::watermark::command::DetectArgs;
use crate::watermark::texts::MAX_LINE_BYTES;
use clap::{Arg, ArgMatches};
use serde_json::{Map, Value as Json};
use std::path::Path;
use toml::{Table, Value};

pub(super) const DETECT: &str = "detect";
/// Texts with a smaller p-value are reported as marked.
const ALPHA: f64 = 1e-3;
/// Largest line length that may be configured.
const MAX_CONFIGURABLE_LINE_BYTES: u64 = 1 << 30;
const PARAMS: &str = "params";
const SCHEME: &str = "scheme";

/// A scheme, and the flags for its parameters.
type Scheme = (&'static str, &'static [&'static str]);

const SCHEMES: [Scheme; 3] = [
    ("kgw", &["hashing-key", "greenlist-ratio", "seeding-scheme", "context-width"]),
    ("synthid", &["keys", "ngram-len", "context-history-size", "sampling-table-size", "sampling-table-seed"]),
    ("gumbel", &["key", "context-width", "context-history-size"]),
];

const ABOUT: &str = "Look for a watermark in texts of token ids";
const EXAMPLES: &str = "\
Each line of the input is a text: [15, 7, 301] or {\"tokens\": [15, 7, 301], \"prompt_tokens\": 1}. The first prompt_tokens \
tokens were not generated with the mark and are only context. Include them: otherwise the first tokens after them cannot be judged.

The p-value is the probability that a text without this mark shows as much of it, or more. It holds for a single text: of a \
thousand texts without a mark, about one is below 0.001. Detection needs length: a few hundred tokens are plenty, unless most of \
them were nearly certain. A repeated n-gram counts once.

Scheme, keys and all parameters must be those that the text was generated with, named as in WatermarkParams of the schema: as flags, \
or in a TOML or JSON file, such as
  [kgw]
  hashing_key = 15485863
  greenlist_ratio = 0.25
Other users of the machine can see keys on a command line. To hide a key from them, put it in such a file, or give it as file:PATH.

  croupier detect --params mark.toml texts.jsonl
  croupier detect --scheme gumbel --key 42 --json < texts.jsonl

Exit code 0 when every text was checked, marked or not; 1 when something could not be read, which is reported with its line; 2 for a \
mistake in the arguments.";

/// The clap definition of `croupier detect`.
pub(super) fn command() -> clap::Command {
    clap::Command::new(DETECT)
        .about(ABOUT)
        .after_help(EXAMPLES)
        .arg(Arg::new("file").value_name("FILE").help("The texts, one per line [default: standard input]"))
        .arg(option(SCHEME, "NAME", "kgw, synthid or gumbel [default: the one in --params]"))
        .arg(option(PARAMS, "PATH", "The mark's parameters, in a table named after the scheme; flags take precedence"))
        .arg(option("hashing-key", "KEY", "kgw: the secret key [default: 15485863]"))
        .arg(option("greenlist-ratio", "SHARE", "kgw: share of the vocabulary that is green [default: 0.25]"))
        .arg(option("seeding-scheme", "NAME", "kgw: lefthash or selfhash [default: lefthash]"))
        .arg(option("keys", "KEY,KEY,...", "synthid: the secret keys, one per layer"))
        .arg(option("ngram-len", "N", "synthid: length of an n-gram, the context and the token [default: 5]"))
        .arg(option("sampling-table-size", "BITS", "synthid: size of the table of g-values [default: 65536]"))
        .arg(option("sampling-table-seed", "N", "synthid: seed of the table of g-values [default: 0]"))
        .arg(option("key", "KEY", "gumbel: the secret key"))
        .arg(option(
            "context-width",
            "N",
            "kgw, gumbel: how many preceding tokens are hashed [default: 1; 4 for selfhash and gumbel]",
        ))
        .arg(option(
            "context-history-size",
            "N",
            "synthid, gumbel: a context seen in the last N positions is not marked again [default: 1024]",
        ))
        .arg(option("alpha", "P", "Texts with a smaller p-value are reported as marked [default: 0.001]"))
        .arg(option("max-line-bytes", "BYTES", "Longest line that is read [default: 16MiB]"))
        .arg(switch("json", "Print a line of JSON for each text instead of a table"))
}

/// Makes the arguments from what clap parsed.
///
/// # Errors
/// Every mistake, including those found before.
pub(super) fn args(matches: &ArgMatches, mut problems: Vec<String>) -> Result<DetectArgs, Vec<String>> {
    let mark = mark(matches, &mut problems);
    let mut reader = Reader::new(matches, problems);
    let share = |t: &str| match t.parse::<f64>() {
        Ok(alpha) if alpha > 0.0 && alpha < 1.0 => Ok(alpha),
        _ => Err(format!("\"{t}\" is not a probability between 0 and 1")),
    };
    let bytes = |t: &str| values::size(t, 1..=MAX_CONFIGURABLE_LINE_BYTES).map(|bytes| bytes as usize);
    let args = DetectArgs {
        file: reader.read("file", None, |t| Ok(Some(t.into()))),
        mark: mark.unwrap_or(Watermark::Kgw(KgwParams::default())),
        alpha: reader.read("alpha", ALPHA, share),
        json: matches.get_flag("json"),
        max_line_bytes: reader.read("max-line-bytes", MAX_LINE_BYTES, bytes),
    };
    reader.end(args)
}

/// The mark: parameters from the file, overridden by flags. `None` if there is a mistake.
fn mark(matches: &ArgMatches, problems: &mut Vec<String>) -> Option<Watermark> {
    let before = problems.len();
    let path = flag(matches, PARAMS);
    let (named, in_file) = match &path {
        Some(path) => from_file(Path::new(path), problems)?,
        None => (None, Table::new()),
    };
    let scheme = scheme(matches, named, problems)?;
    let flags = given(matches, scheme, problems);
    let given = Given { scheme: scheme.0, path, in_file, flags };
    let read = given.read(matches);
    problems.extend(read.as_ref().err().into_iter().flatten().map(|wrong| given.told(wrong)));
    let mark = read.ok()?;
    if problems.len() == before
        && let Err(FieldError { field, message }) = mark.validate()
    {
        let at = field.strip_prefix(given.scheme).unwrap_or(&field).to_owned();
        problems.push(given.told(&Wrong { at, what: message }));
    }
    (problems.len() == before).then_some(mark)
}

/// The scheme that the flag names, or else the one of the file. `None` if there is none.
fn scheme(matches: &ArgMatches, named: Option<String>, problems: &mut Vec<String>) -> Option<Scheme> {
    let Some(name) = flag(matches, SCHEME).or_else(|| named.clone()) else {
        problems.push(
            "--scheme: is required; give kgw, synthid or gumbel, or --params with the mark's parameters".to_owned(),
        );
        return None;
    };
    let Some(&(scheme, flags)) = SCHEMES.iter().find(|(scheme, _)| *scheme == name) else {
        problems.push(format!("--scheme: \"{name}\" is not one of {}", marks::SCHEMES.join(", ")));
        return None;
    };
    if named.is_some_and(|named| named != scheme) {
        problems.push(format!("--scheme: {scheme} is not the scheme in --params"));
    }
    Some((scheme, flags))
}

/// The scheme's parameters that are given as flags.
fn given(matches: &ArgMatches, (scheme, flags): Scheme, problems: &mut Vec<String>) -> Vec<&'static str> {
    let mut all: Vec<&str> = SCHEMES.iter().flat_map(|(_, flags)| *flags).copied().collect();
    all.sort_unstable();
    all.dedup();
    let mut given = Vec::new();
    for name in all.into_iter().filter(|name| flag(matches, name).is_some()) {
        if flags.contains(&name) {
            given.push(name);
        } else {
            problems.push(format!("--{name}: is not a parameter of {scheme}"));
        }
    }
    given
}

/// The parameters of a scheme, and where they come from.
struct Given {
    scheme: &'static str,
    path: Option<String>,
    in_file: Table,
    /// The parameters that flags set. They take precedence over the file.
    flags: Vec<&'static str>,
}

impl Given {
    fn read(&self, matches: &ArgMatches) -> Read<Watermark> {
        let mut all = self.in_file.clone();
        for name in &self.flags {
            all.extend(flag(matches, name).map(|text| (name.replace('-', "_"), Value::String(text))));
        }
        marks::of_scheme(self.scheme, &Value::Table(all))
    }

    /// A message that names the flag, or the file and the key.
    fn told(&self, Wrong { at, what }: &Wrong) -> String {
        let key = at.trim_start_matches('.');
        let flag = key.split(['.', '[']).next().unwrap_or(key).replace('_', "-");
        match &self.path {
            Some(path) if !self.flags.contains(&flag.as_str()) => format!("{path}: {}{at}: {what}", self.scheme),
            _ => format!("--{}: {what}", key.replace('_', "-")),
        }
    }
}

/// The scheme and parameters that a file gives.
fn from_file(path: &Path, problems: &mut Vec<String>) -> Option<(Option<String>, Table)> {
    let text = file::text(path, problems)?;
    let place = path.display().to_string();
    let parsed = if path.extension().is_some_and(|extension| extension == "json") {
        serde_json::from_str(&text).map(table_of).map_err(|e| vec![format!("{place}: is not a JSON object: {e}")])
    } else {
        file::table(&text, &place)
    };
    let schemes = marks::SCHEMES.join(", ");
    let tables = parsed.map_err(|found| problems.extend(found)).ok()?;
    let names = tables.keys().cloned().collect::<Vec<_>>().join(", ");
    let mut tables = tables.into_iter();
    match (tables.next(), tables.next()) {
        (Some((name, Value::Table(given))), None) if marks::SCHEMES.contains(&name.as_str()) => {
            return Some((Some(name), given));
        }
        (None, _) => problems.push(format!("{place}: is empty; it must have one table, named one of {schemes}")),
        (Some((name, Value::Table(_))), None) => problems.push(format!("{place}: {name}: is not one of {schemes}")),
        _ => problems.push(format!("{place}: {names}: must be a single table, named one of {schemes}")),
    }
    None
}

/// The same table in TOML. Numbers that TOML does not have become texts.
fn table_of(map: Map<String, Json>) -> Table {
    map.into_iter().map(|(key, json)| (key, value_of(json))).collect()
}

fn value_of(json: Json) -> Value {
    match json {
        Json::Null => Value::String("null".to_owned()),
        Json::Bool(is) => Value::Boolean(is),
        Json::Number(n) => match (n.as_i64(), n.as_u64(), n.as_f64()) {
            (Some(n), _, _) => Value::Integer(n),
            (None, None, Some(x)) => Value::Float(x),
            _ => Value::String(n.to_string()),
        },
        Json::String(text) => Value::String(text),
        Json::Array(list) => Value::Array(list.into_iter().map(value_of).collect()),
        Json::Object(map) => Value::Table(table_of(map)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::watermark::{GumbelParams, SeedingScheme, SynthidParams};

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
        let expected = KgwParams { hashing_key: 5, bias: 3.5, context_width: 3, ..KgwParams::default() };
        assert_eq!(args.mark, Watermark::Kgw(expected));
        let (_dir, path) = file("mark.json", r#"{"synthid": {"keys": ["18446744073709551615", 2], "ngram_len": 3}}"#);
        let expected = SynthidParams { ngram_len: 3, ..SynthidParams::new(vec![u64::MAX, 2]) };
        assert_eq!(read(&["--params", &path]).unwrap().mark, Watermark::Synthid(expected));
    }

    #[test]
    fn every_mistake_is_told() {
        let problems = |arguments: &[&str]| read(arguments).unwrap_err();
        assert!(problems(&[])[0].starts_with("--scheme: is required"));
        assert_eq!(problems(&["--scheme", "red"]), ["--scheme: \"red\" is not one of kgw, synthid, gumbel"]);
        let found = problems(&["--scheme", "gumbel", "--keys", "1", "--context-width", "x", "--alpha", "2"]);
        let expected = [
            "--keys: is not a parameter of gumbel",
            "--key: is required",
            "--context-width: \"x\" is not a whole number, 0 or more",
            "--alpha: \"2\" is not a probability between 0 and 1",
        ];
        assert_eq!(found, expected);
        let found = problems(&["--scheme", "kgw", "--greenlist-ratio", "1.5"]);
        assert_eq!(found, ["--greenlist-ratio: is 1.5, must be in 0.001 ..= 0.999"]);
        assert_eq!(problems(&["--scheme", "synthid"]), ["--keys: is required"]);
        assert_eq!(problems(&["--scheme", "synthid", "--keys", "1,2,1"])[0].split(':').next(), Some("--keys[2]"));
        let found = problems(&["--scheme", "synthid", "--keys", "secret"]);
        assert_eq!(found, ["--keys[0]: is not a key, a whole number below 2^64 (in a file, from 2^63 on as a string)"]);
    }

    #[test]
    fn every_mistake_in_a_file_is_told_with_file_and_key() {
        let told = |name: &str, text: &str, arguments: &[&str]| {
            let (_dir, path) = file(name, text);
            let found = read(&[&["--params", path.as_str()], arguments].concat()).unwrap_err();
            let bare = |problem: String| problem.replacen(&format!("{path}: "), "FILE: ", 1);
            found.into_iter().map(bare).collect::<Vec<_>>()
        };
        let found = told("mark.toml", "[kgw]\nhashing_kee = 5\ncontext_width = -1\nbias = \"x\"\n", &[]);
        let expected = [
            "FILE: kgw.bias: \"x\" is not a number",
            "FILE: kgw.context_width: -1 is not a whole number, 0 or more",
            "FILE: kgw.hashing_kee: unknown key; did you mean hashing_key?",
        ];
        assert_eq!(found, expected);
        assert_eq!(
            told("mark.toml", "[kgw]\ngreenlist_ratio = 2\n", &[]),
            ["FILE: kgw.greenlist_ratio: is 2, must be in 0.001 ..= 0.999"]
        );
        // A mistake in a flag is reported for the flag, even if there is a file.
        assert_eq!(
            told("mark.toml", "[kgw]\ncontext_width = 2\n", &["--context-width", "9"]),
            ["--context-width: is 9, must be in 1 ..= 8"]
        );
        assert_eq!(
            told("mark.json", r#"{"gumbel": {"context_width": null}}"#, &[]),
            ["FILE: gumbel.key: is required", "FILE: gumbel.context_width: \"null\" is not a whole number, 0 or more",]
        );
        assert_eq!(
            told("mark.json", r#"{"synthid": {"keys": [1, 1.5]}}"#, &[]),
            ["FILE: synthid.keys[1]: is not a key, a whole number below 2^64 (in a file, from 2^63 on as a string)"]
        );
        assert!(told("mark.json", "[1]", &[])[0].starts_with("FILE: is not a JSON object: "));
        assert!(told("mark.toml", "[kgw]\nx = = 1\ny = [,]\n", &[])[0].starts_with("FILE: is not TOML: "));
        assert_eq!(told("mark.toml", "[red]\n", &[]), ["FILE: red: is not one of kgw, synthid, gumbel"]);
        assert_eq!(
            told("mark.toml", "", &[]),
            ["FILE: is empty; it must have one table, named one of kgw, synthid, gumbel"]
        );
        let one = "must be a single table, named one of kgw, synthid, gumbel";
        assert_eq!(told("mark.toml", "key = 5\n", &[]), [format!("FILE: key: {one}")]);
        assert_eq!(told("mark.toml", "[gumbel]\n[kgw]\n", &[]), [format!("FILE: gumbel, kgw: {one}")]);
        assert_eq!(
            told("mark.toml", "[kgw]\n", &["--scheme", "gumbel"])[0],
            "--scheme: gumbel is not the scheme in --params"
        );
    }
}
