//! What the documentation points at is there: links, files, and tests named as `file::test`. And every reason is explained.

#![allow(clippy::unwrap_used)] // A helper of tests may stop at the first surprise, as a test may.

use croupier::error::Reason;
use croupier::proto::{OpenStatus, RowStatus};
use std::fs;
use std::path::{Path, PathBuf};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
/// Folders that hold pages; the root is one, without what lies below it.
const FOLDERS: [&str; 8] =
    ["", "docs", "docs/decisions", "examples", "helm/croupier", "kernels", "python", "tests/python"];
/// What begins like this between backticks is a place in the repository.
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

/// Targets of links to files, relative to the page.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|t| !t.contains("://")).map(|t| t.split('#').next().unwrap()).filter(|t| !t.is_empty())
}

/// Places named in the text outside of code blocks.
fn places(text: &str) -> impl Iterator<Item = &str> {
    let prose = text.split("```").step_by(2);
    let quoted = prose.flat_map(|part| part.split('`').skip(1).step_by(2));
    quoted.filter(|q| PLACES.iter().any(|place| q.starts_with(place)) && !q.contains([' ', '*', '<', '{']))
}

/// What is wrong with a place: the file is not there, or has no such function.
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
        let broken = links(&text).filter(|target| !page.parent().unwrap().join(target).exists());
        wrong.extend(broken.map(|target| format!("{name}: the link {target} leads nowhere")));
        wrong.extend(places(&text).filter_map(missing).map(|what| format!("{name}: {what}")));
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

#[test]
fn what_is_not_there_is_found() {
    assert_eq!(links("[a](b.md#c), [d](https://e), [f](#g)").collect::<Vec<_>>(), ["b.md"]);
    assert_eq!(
        places("`src/a.rs` of `x`\n```\n`src/b.rs`\n```\n`tests/c.rs::d`").collect::<Vec<_>>(),
        ["src/a.rs", "tests/c.rs::d"]
    );
    assert!(missing("src/nowhere.rs").is_some());
    assert!(missing("src/error.rs::nothing").is_some());
    assert_eq!(missing("src/error.rs::retry_after"), None);
}
