//! The targets that the documentation names exist: links, headings, files, and tests named as `file::test`. And every reason is explained.

use croupier::error::Reason;
use croupier::proto::{OpenStatus, RowStatus};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
/// Folders that have pages. The root is one of them, without its subfolders.
const FOLDERS: [&str; 8] =
    ["", "docs", "docs/decisions", "examples", "helm/croupier", "kernels", "python", "tests/python"];
/// Text between backticks that begins like this is a place in the repository.
const PLACES: [&str; 11] = [
    "src/",
    "tests/",
    "benches/",
    "examples/",
    "docs/",
    "helm/",
    "kernels/",
    "scripts/",
    "proto/croupier/",
    ".ci/",
    "Cargo.",
];

fn pages() -> Vec<PathBuf> {
    let files = FOLDERS.iter().flat_map(|folder| Path::new(ROOT).join(folder).read_dir().unwrap());
    let mut pages: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    pages.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    pages
}

/// Targets of links: a file, relative to the page (empty for the page itself), and a heading of that file, if one is given.
fn links(text: &str) -> impl Iterator<Item = (&str, Option<&str>)> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let inside = targets.filter(|t| !t.is_empty() && !t.contains("://"));
    inside.map(|t| t.split_once('#').map_or((t, None), |(file, heading)| (file, Some(heading))))
}

/// The names that links use for the headings of a page, as on GitHub: in lower case, with `-` for a space and without punctuation. Repeated
/// names are numbered.
fn anchors(text: &str) -> Vec<String> {
    let lines = text.split("```").step_by(2).flat_map(str::lines);
    let headings = lines.filter(|line| line.starts_with('#') && line.trim_start_matches('#').starts_with(' '));
    let slugs = headings.map(|line| {
        let kept = line.trim_start_matches('#').trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect::<String>()
    });
    let slugs: Vec<String> = slugs.collect();
    let again = |at: usize| slugs[..at].iter().filter(|slug| **slug == slugs[at]).count();
    let numbered = |at: usize| if again(at) > 0 { format!("{}-{}", slugs[at], again(at)) } else { slugs[at].clone() };
    (0..slugs.len()).map(numbered).collect()
}

/// What is wrong with a link of a page: the file does not exist, or has no such heading.
fn broken(page: &Path, (file, heading): (&str, Option<&str>)) -> Option<String> {
    let path = if file.is_empty() { page.to_owned() } else { page.parent().unwrap().join(file) };
    if !path.exists() {
        return Some(format!("the link {file} leads nowhere"));
    }
    let heading = heading?;
    let found = anchors(&fs::read_to_string(path).unwrap()).iter().any(|anchor| anchor == heading);
    (!found).then(|| format!("the link {file}#{heading} leads to no heading"))
}

/// Places named in the text outside of code blocks.
fn places(text: &str) -> impl Iterator<Item = &str> {
    let prose = text.split("```").step_by(2);
    let quoted = prose.flat_map(|part| part.split('`').skip(1).step_by(2));
    quoted.filter(|q| PLACES.iter().any(|place| q.starts_with(place)) && !q.contains([' ', '*', '<', '{']))
}

/// What is wrong with a place: the file does not exist, or has no such function.
fn missing(place: &str) -> Option<String> {
    let (file, function) = place.split_once("::").map_or((place, None), |(file, name)| (file, Some(name)));
    let path = Path::new(ROOT).join(file);
    match function {
        _ if !path.exists() => Some(format!("{file} is not there")),
        Some(name) => {
            let text = fs::read_to_string(&path).unwrap();
            let defined = [format!("fn {name}("), format!("def {name}(")].iter().any(|line| text.contains(line));
            (!defined).then(|| format!("{file} has no {name}"))
        }
        None => None,
    }
}

#[test]
fn every_link_and_every_place_is_there() {
    let mut wrong = Vec::new();
    let pages = pages();
    for page in &pages {
        let text = fs::read_to_string(page).unwrap();
        let name = page.strip_prefix(ROOT).unwrap().display();
        let broken = links(&text).filter_map(|link| broken(page, link));
        wrong.extend(broken.chain(places(&text).filter_map(missing)).map(|what| format!("{name}: {what}")));
    }
    assert!(pages.len() > 8, "the pages were not found");
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn every_reason_and_every_status_is_explained() {
    let page = fs::read_to_string(Path::new(ROOT).join("docs/errors.md")).unwrap();
    let opens = (0..=255_i32).filter_map(|number| OpenStatus::try_from(number).ok()).map(|status| status.as_str_name());
    let rows = (0..=255_i32).filter_map(|number| RowStatus::try_from(number).ok()).map(|status| status.as_str_name());
    let names = Reason::ALL.iter().map(|reason| reason.name()).chain(opens).chain(rows);
    let unexplained: Vec<&str> = names.filter(|name| !page.contains(&format!("`{name}`"))).collect();
    assert!(unexplained.is_empty(), "docs/errors.md has nothing about {unexplained:?}");
}

/// The output of `croupier explain` that a page shows is what the program prints.
#[test]
fn the_row_that_is_explained_is_what_the_program_says() {
    let page = fs::read_to_string(Path::new(ROOT).join("docs/sampling.md")).unwrap();
    let (_, shown) = page.split_once("$ echo ").unwrap();
    let (shown, _) = shown.split_once("\n```").unwrap();
    let (command, expected) = shown.split_once('\n').unwrap();
    let (row, flags) = command.split_once(" | croupier ").unwrap();
    let mut program = Command::new(env!("CARGO_BIN_EXE_croupier"));
    let mut child = program.args(flags.split(' ')).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(row.as_bytes()).unwrap();
    assert_eq!(String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap().trim_end(), expected);
}

/// The output of `croupier compare` that a page shows is what the program prints.
#[test]
fn the_rows_that_are_compared_are_what_the_program_says() {
    let page = fs::read_to_string(Path::new(ROOT).join("docs/clients.md")).unwrap();
    let (_, shown) = page.split_once("$ croupier compare ").unwrap();
    let (shown, _) = shown.split_once("\n```").unwrap();
    let (flags, expected) = shown.split_once('\n').unwrap();
    let line = format!("{} compare {flags}", env!("CARGO_BIN_EXE_croupier"));
    let output = Command::new("bash").args(["-c", &line]).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim_end(), expected);
    assert_eq!(output.status.code(), Some(1), "one of the rows is not the model's");
}

#[test]
fn what_is_not_there_is_found() {
    let found: Vec<_> = links("[a](b.md#c), [d](https://e), [f](#g), [h](i.md)").collect();
    assert_eq!(found, [("b.md", Some("c")), ("", Some("g")), ("i.md", None)]);
    assert_eq!(anchors("# A b, C\n```\n# no\n```\n## `x_y`-2\n#no\n# a b c"), ["a-b-c", "x_y-2", "a-b-c-1"]);
    let page = Path::new(ROOT).join("README.md");
    assert!(broken(&page, ("nowhere.md", None)).is_some());
    assert!(broken(&page, ("docs/errors.md", Some("nothing"))).is_some());
    assert_eq!(broken(&page, ("docs/errors.md", Some("row-statuses"))), None);
    assert_eq!(
        places("`src/a.rs` of `x`\n```\n`src/b.rs`\n```\n`tests/c.rs::d`").collect::<Vec<_>>(),
        ["src/a.rs", "tests/c.rs::d"]
    );
    assert!(missing("src/nowhere.rs").is_some());
    assert!(missing("src/error.rs::nothing").is_some());
    assert_eq!(missing("src/error.rs::retry_after"), None);
}
