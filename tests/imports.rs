//! Checks which code may use what, by reading `src/`.
//!
//! It reads text, not syntax: line comments are cut off, string literals stay. That is enough as long as the tests of
//! each rule, below, show that it can fail.

use std::fmt::Write;
use std::path::{Path, PathBuf};

/// A longer file must be split.
const MAX_LINES: usize = 400;
/// A SAFETY comment stands at most this many lines above its `unsafe`.
const SAFETY_WITHIN: usize = 6;

/// A word that may be used only below some paths of `src/`.
struct Confined {
    /// See [`uses`].
    word: &'static str,
    only_in: &'static [&'static str],
    why: &'static str,
}

const CONFINED: &[Confined] = &[
    Confined {
        word: "tonic",
        only_in: GRPC,
        why: "gRPC is spoken in one place, so that the rest can be tested without it",
    },
    Confined { word: "prost", only_in: GRPC, why: "as tonic" },
    Confined { word: "crate::proto", only_in: GRPC, why: "wire types end where the wire ends" },
    Confined { word: "tokio_rustls", only_in: &["tls", "rpc"], why: "one place knows how TLS is spoken" },
    Confined { word: "cudarc", only_in: &["backend/cuda", "region"], why: "one door to the device" },
    Confined { word: "llguidance", only_in: &["grammar"], why: "one place knows whose automata grammars are" },
    Confined { word: "toktrie", only_in: &["grammar"], why: "as llguidance" },
    Confined { word: "derivre", only_in: &["grammar"], why: "as llguidance" },
    Confined { word: "\"croupier_", only_in: &["metrics"], why: "metric names are a contract, written once" },
    Confined {
        word: "clap",
        only_in: &["config"],
        why: "the command line is one source of configuration among several",
    },
    Confined {
        word: "unsafe",
        only_in: &["backend/cpu", "backend/cuda", "region", "memory"],
        why: "it is needed for SIMD, CUDA, shared memory and the allocator's settings only",
    },
];

/// The service, the clients, and the generated code itself.
const GRPC: &[&str] = &["rpc", "message", "bench", "dial", "otlp", "healthcheck/grpc", "app", "lib.rs"];

/// The order of modules: each may use the modules in its own line and above, never those below. `bench` is a program
/// apart from the server: only `app`, `config` and `main` may use it.
const LAYERS: &[&[&str]] = &[
    &[
        "params",
        "proto",
        "vocabulary",
        "memory",
        "files",
        "admin_client",
        "reload",
        "tls",
        "tokens",
        "dial",
        "output",
        "locks",
        "complaints",
        "blocking_semaphore",
        "growth",
    ],
    &["limits", "sampling", "automaton"],
    &["speculative", "watermark", "row_files"],
    &["error", "permits", "backend", "region", "grammar"],
    &["metrics", "sequence", "message"],
    &["engine", "trace"],
    &["bench", "top", "inject", "explain", "compare", "config", "telemetry", "otlp", "shutdown"],
    &["rpc"],
    &["admin", "healthcheck", "secrets"],
    &["app"],
    &["lib", "main"],
];

/// One source file: its path below `src/` and its text.
struct Source {
    path: String,
    text: String,
}

impl Source {
    fn is_below(&self, place: &str) -> bool {
        self.path == place
            || self.path == format!("{place}.rs")
            || self.path.strip_prefix(place).is_some_and(|rest| rest.starts_with('/'))
    }

    /// The module directly below the root.
    fn module(&self) -> &str {
        let first = self.path.split('/').next().unwrap_or(&self.path);
        first.strip_suffix(".rs").unwrap_or(first)
    }

    /// Lines with their numbers, without comments and without the unit tests at the end: those may use anything.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let code = |line: &'_ str| -> usize { line.find("//").unwrap_or(line.len()) };
        let lines = self.text.lines().take_while(|line| *line != "mod tests {" && !self.path.ends_with("tests.rs"));
        lines.enumerate().map(move |(i, line)| (i + 1, &line[..code(line)]))
    }
}

/// Every place that breaks a rule, as text for people.
fn violations(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources {
        confined(source, &mut found);
        layered(source, &mut found);
        safety(source, &mut found);
        let lines = source.text.lines().count();
        if lines > MAX_LINES {
            found.push(format!("{}: {lines} lines, at most {MAX_LINES}; split it", source.path));
        }
    }
    found
}

fn confined(source: &Source, found: &mut Vec<String>) {
    for rule in CONFINED.iter().filter(|rule| !rule.only_in.iter().any(|place| source.is_below(place))) {
        for (number, _) in source.code().filter(|(_, line)| uses(line, rule.word)) {
            found.push(format!("{}:{number}: {} belongs in {:?}: {}", source.path, rule.word, rule.only_in, rule.why));
        }
    }
}

fn layered(source: &Source, found: &mut Vec<String>) {
    let rank = |module: &str| LAYERS.iter().position(|layer| layer.contains(&module));
    let own = source.module();
    let Some(own_rank) = rank(own) else {
        found.push(format!("{}: module {own} has no place in LAYERS", source.path));
        return;
    };
    for (number, line) in source.code() {
        for used in line.split("crate::").skip(1).flat_map(used_modules) {
            match rank(used) {
                Some(used_rank) if used_rank <= own_rank => {}
                Some(_) => found.push(format!("{}:{number}: {own} uses {used}, which stands above it", source.path)),
                None => found.push(format!("{}:{number}: {own} uses {used:?}, which is not in LAYERS", source.path)),
            }
        }
    }
}

/// The modules named by what follows `crate::` in a line: one, or a list.
fn used_modules(after: &str) -> Vec<&str> {
    let name = |text: &str| text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    match after.strip_prefix('{') {
        None => vec![&after[..name(after)]],
        Some(list) => {
            let names = list.trim_end_matches(['}', ';']).split(',').map(str::trim);
            // The name of a module, not of an item of a nested list.
            names.filter(|n| !n.is_empty()).map(|n| &n[..name(n)]).collect()
        }
    }
}

fn safety(source: &Source, found: &mut Vec<String>) {
    let lines: Vec<&str> = source.text.lines().collect();
    let asks = |line: &str| ["unsafe {", "unsafe impl", "unsafe extern"].iter().any(|word| line.contains(word));
    for (number, _) in source.code().filter(|(_, line)| asks(line)) {
        let mut near = lines[number.saturating_sub(1 + SAFETY_WITHIN)..number].iter();
        // One reason may cover a whole impl of one-line wrappers: it holds up to the brace that ends the item.
        let mut item = lines[..number].iter().rev().take_while(|line| **line != "}");
        if !near.any(|line| line.contains("// SAFETY:")) && !item.any(|line| line.contains("// SAFETY (whole")) {
            found.push(format!("{}:{number}: unsafe without a SAFETY comment", source.path));
        }
    }
}

/// Whether `line` uses `word`: a path that begins with a crate or module (`tonic_health` belongs to `tonic`), a
/// keyword, or the start of a string literal. Words inside a string do not count.
fn uses(line: &str, word: &str) -> bool {
    let inside = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + word.len()..]);
        let path = after.strip_prefix('_').map_or(after, |rest| rest.trim_start_matches(inside));
        let ends = match word {
            "crate::proto" => !after.starts_with(inside),
            // An unsafe trait or impl does nothing but promise something. The code that relies on the promise is
            // confined.
            "unsafe" => !after.starts_with(inside) && ![" trait ", " impl "].iter().any(|item| after.starts_with(item)),
            _ => word.starts_with('"') || path.starts_with("::"),
        };
        ends && !before.ends_with(inside)
    })
}

fn read(folder: &Path, root: &Path, sources: &mut Vec<Source>) {
    let mut entries: Vec<PathBuf> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            read(&path, root, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let below = path.strip_prefix(root).unwrap().to_str().unwrap().replace('\\', "/");
            sources.push(Source { path: below, text });
        }
    }
}

#[test]
fn the_sources_keep_the_rules() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut sources = Vec::new();
    read(&root, &root, &mut sources);
    assert!(sources.len() > 10, "the sources were not found");
    let report = violations(&sources).iter().fold(String::new(), |mut report, violation| {
        writeln!(report, "  src/{violation}").unwrap();
        report
    });
    assert!(report.is_empty(), "import rules are broken:\n{report}");
}

/// Files of tests that no other file names as its module, so that nothing would compile them. The roots are in
/// `programs`.
fn forgotten(tests: &[Source], programs: &str) -> Vec<String> {
    let is_named = |name: &str, by: &dyn Fn(&str) -> bool| {
        let mut others = tests.iter().filter(|source| by(&source.path));
        others.any(|source| source.text.lines().any(|line| line.ends_with(&format!("mod {name};"))))
    };
    let is_reached = |source: &Source| {
        let path = source.path.strip_suffix(".rs").unwrap().trim_end_matches("/mod");
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        let is_program = above.is_empty() && programs.contains(&format!("[[test]]\nname = \"{name}\"\n"));
        // Files of `support` may be named by the programs and by each other.
        let by = |other: &str| {
            let above = if above == "support" { "" } else { above };
            other.strip_suffix(".rs").unwrap().trim_end_matches("/mod") == above
                || (above.is_empty() && !other.contains('/'))
                || other.starts_with("support/")
        };
        is_program || is_named(name, &by)
    };
    tests.iter().filter(|source| !is_reached(source)).map(|source| source.path.clone()).collect()
}

#[test]
fn every_file_of_tests_is_compiled() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let programs = std::fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let mut tests = Vec::new();
    read(&root.join("tests"), &root.join("tests"), &mut tests);
    assert!(tests.len() > 100, "the tests were not found");
    assert_eq!(forgotten(&tests, &programs), [""; 0], "name them as modules, as the files beside them are");
    for planted in ["new.rs", "drafts/new.rs", "samplers/naive/new.rs", "support/new.rs", "new/mod.rs"] {
        tests.push(Source { path: planted.to_owned(), text: String::new() });
        assert_eq!(forgotten(&tests, &programs), [planted]);
        tests.pop();
    }
}

/// The number of rules that one planted file breaks.
fn planted(path: &str, text: &str) -> usize {
    violations(&[Source { path: path.to_owned(), text: text.to_owned() }]).len()
}

#[test]
fn a_planted_word_is_found_outside_its_place_only() {
    for (word, home, elsewhere) in [
        ("use tonic::Status;", "rpc/mod.rs", "engine/mod.rs"),
        ("use tonic_health::pb;", "rpc/health.rs", "healthcheck.rs"),
        ("use prost::Message;", "bench/load.rs", "admin.rs"),
        ("use crate::proto;", "rpc/mod.rs", "engine/mod.rs"),
        ("let x: crate::proto::Step;", "rpc/decode.rs", "engine/step.rs"),
        ("use tokio_rustls::TlsAcceptor;", "tls/mod.rs", "config/mod.rs"),
        ("use cudarc::driver;", "backend/cuda/mod.rs", "backend/mod.rs"),
        ("const NAME: &str = \"croupier_rows_total\";", "metrics/catalog.rs", "rpc/mod.rs"),
        ("use clap::Parser;", "config/cli.rs", "app.rs"),
        ("// SAFETY: planted\nunsafe { f() }", "backend/cpu/avx2.rs", "engine/mod.rs"),
    ] {
        assert_eq!(planted(home, word), 0, "{word} in {home}");
        assert_eq!(planted(elsewhere, word), 1, "{word} in {elsewhere}");
    }
    assert_eq!(planted("engine/mod.rs", "// tonic::Status is not seen here\nlet text = \"a tonic stream\";"), 0);
    assert_eq!(planted("engine/mod.rs", "mod tests {\n    use tonic::Status;\n}"), 0);
    assert_eq!(planted("engine/mod.rs", "//! unsafe, clap and prost in a comment"), 0);
}

#[test]
fn a_planted_import_against_the_direction_is_found() {
    assert_eq!(planted("rpc/mod.rs", "use crate::engine::Handle;"), 0);
    assert_eq!(planted("engine/mod.rs", "use crate::rpc::Service;"), 1);
    assert_eq!(planted("backend/cpu/mod.rs", "use crate::engine::Step;"), 1);
    assert_eq!(planted("sampling/row.rs", "use crate::backend::RowJob;"), 1);
    assert_eq!(planted("params/mod.rs", "use crate::sampling::row::RowSpec;"), 1);
    assert_eq!(planted("engine/mod.rs", "use crate::{app, limits, rpc};"), 2, "a list hides nothing");
    assert_eq!(planted("unheard_of.rs", ""), 1, "a new module must be given its place");
}

#[test]
fn planted_unsafe_without_a_reason_and_overlong_files_are_found() {
    assert_eq!(planted("backend/cpu/avx2.rs", "let x = unsafe { f() };"), 1);
    assert_eq!(planted("backend/cpu/avx2.rs", "// SAFETY: planted\nlet x = unsafe { f() };"), 0);
    // Such promises may be made anywhere, with a reason.
    assert_eq!(planted("engine/mod.rs", "// SAFETY: planted\nunsafe impl Foreign for A {}"), 0);
    assert_eq!(planted("engine/mod.rs", "unsafe impl Foreign for A {}"), 1);
    let whole = "// SAFETY (whole impl): planted\nimpl A {\nfn f() {\nunsafe { f() }\n    }\n}\n";
    assert_eq!(planted("backend/cpu/avx2.rs", whole), 0);
    assert_eq!(
        planted("backend/cpu/avx2.rs", &format!("{whole}fn g() {{ unsafe {{ f() }} }}\n{}", "//\n".repeat(9))),
        1
    );
    assert_eq!(planted("params.rs", &"x\n".repeat(MAX_LINES)), 0);
    assert_eq!(planted("params.rs", &"x\n".repeat(MAX_LINES + 1)), 1);
}
