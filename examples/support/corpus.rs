//! Text to learn from: two files that are part of the example and the prose of this repository, or files given by the
//! user.

use super::Result;
use super::ngram::NgramModel;
use std::path::{Path, PathBuf};
use tiktoken_rs::CoreBPE;

const SHIPPED: [&str; 2] = [include_str!("../data/fables.txt"), include_str!("../data/tales.txt")];
/// The line that separates documents.
const SEPARATOR: &str = "***";
/// The tales have this many times as many bytes as the prose of the repository, which is enough to meet it now and
/// then.
const REPOSITORY_SHARE: usize = 6;
/// Least length of a paragraph of the repository. Shorter ones are labels and remarks that make no sense elsewhere.
const LEAST_PARAGRAPH: usize = 60;
/// `<|endoftext|>` of `o200k_base`.
pub(crate) const END_OF_TEXT: u32 = 199_999;
/// Vocabulary size of `o200k_base`, special tokens included.
pub(crate) const VOCAB_SIZE: usize = 200_019;

/// The tokenizer, the documents, their text as tokens, and a model of that text.
pub(crate) struct Learned {
    pub(crate) tokenizer: CoreBPE,
    pub(crate) documents: Vec<String>,
    pub(crate) tokens: Vec<u32>,
    pub(crate) model: NgramModel,
}

/// Reads and learns the text. It computes for seconds, so it does not run on the threads that serve.
pub(crate) async fn learn(files: Vec<PathBuf>, order: usize) -> Result<Learned> {
    let learn = move || {
        let documents = documents(&files)?;
        let tokenizer = tiktoken_rs::o200k_base().map_err(|e| format!("the o200k_base vocabulary: {e}"))?;
        let tokens = tokens(&tokenizer, &documents);
        let model = NgramModel::train(&tokens, order, VOCAB_SIZE);
        Ok(Learned { tokenizer, documents, tokens, model })
    };
    tokio::task::spawn_blocking(learn).await?
}

/// The bytes of these tokens, without ends of text.
pub(crate) fn text(tokenizer: &CoreBPE, tokens: &[u32]) -> Vec<u8> {
    let words: Vec<u32> = tokens.iter().copied().filter(|&token| token != END_OF_TEXT).collect();
    tokenizer.decode_bytes(&words).unwrap_or_default()
}

/// The documents to learn from.
fn documents(files: &[PathBuf]) -> Result<Vec<String>> {
    let mut documents = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(file).map_err(|e| format!("cannot read {}: {e}", file.display()))?;
        split(&text, 0, &mut documents);
    }
    if files.is_empty() {
        SHIPPED.iter().for_each(|text| split(text, 0, &mut documents));
        // If the program was copied away from its sources, it still has its own two files.
        repository(Path::new(env!("CARGO_MANIFEST_DIR")), &mut documents);
    }
    Ok(documents)
}

/// All documents as tokens, with an end of text before, between and after them.
fn tokens(tokenizer: &CoreBPE, documents: &[String]) -> Vec<u32> {
    let mut tokens = vec![END_OF_TEXT];
    for document in documents {
        tokens.extend(tokenizer.encode_ordinary(document));
        tokens.push(END_OF_TEXT);
    }
    tokens
}

fn split(text: &str, least_paragraph: usize, documents: &mut Vec<String>) {
    let mut lines = Vec::new();
    for line in text.lines().chain([SEPARATOR]) {
        if line.trim() == SEPARATOR {
            documents.extend(Some(unwrapped(&lines, least_paragraph)).filter(|document| !document.is_empty()));
            lines.clear();
        } else {
            lines.push(line);
        }
    }
}

/// Joins the lines of each paragraph, because line breaks made by an editor are not part of the text.
fn unwrapped(lines: &[&str], least_paragraph: usize) -> String {
    let paragraphs = lines.split(|line| line.trim().is_empty());
    let joined = paragraphs.map(|lines| lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" "));
    joined.filter(|paragraph| paragraph.len() >= least_paragraph.max(1)).collect::<Vec<_>>().join("\n\n")
}

/// The repository's own prose, up to its share: documentation, and the comments of the schema and the sources.
fn repository(root: &Path, documents: &mut Vec<String>) {
    let bytes = |documents: &[String]| documents.iter().map(String::len).sum::<usize>();
    let most = bytes(documents) + bytes(documents) / REPOSITORY_SHARE;
    let mut files = Vec::new();
    for part in ["README.md", "proto", "docs", "src"] {
        let begin = files.len();
        walk(&root.join(part), &mut files);
        // The order of files in a directory differs between machines, but the model must not.
        files[begin..].sort();
    }
    for file in files {
        let Ok(text) = std::fs::read_to_string(&file) else { continue };
        let prose = match file.extension().and_then(|e| e.to_str()) {
            Some("md") => markdown_prose(&text),
            Some("rs" | "proto") => comment_prose(&text),
            _ => continue,
        };
        if bytes(documents) + prose.len() <= most {
            split(&prose, LEAST_PARAGRAPH, documents);
        }
    }
}

fn walk(path: &Path, files: &mut Vec<PathBuf>) {
    if path.is_file() {
        files.push(path.to_owned());
    }
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        walk(&entry.path(), files);
    }
}

/// Markdown without code, tables, headings and markup, which would not read well out of place.
fn markdown_prose(text: &str) -> String {
    let mut in_code = false;
    let mut prose = String::new();
    for line in text.lines() {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        let keep = !(in_code || fence || line.starts_with(['|', '#', '<', '!', '[', ' ', '-', '*']));
        prose.push_str(if keep { line } else { "" });
        prose.push('\n');
    }
    prose.replace(['`', '*'], "")
}

/// The comments of a source file, each as a paragraph.
fn comment_prose(text: &str) -> String {
    let mut prose = String::new();
    for line in text.lines() {
        let comment = line.trim_start().strip_prefix("//").map(|c| c.trim_start_matches(['/', '!']).trim());
        // Rulers and links are not prose.
        prose.push_str(comment.filter(|c| !c.starts_with(['-', '#', '['])).unwrap_or_default());
        prose.push('\n');
    }
    prose.replace(['`', '[', ']'], "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_split_and_paragraphs_joined() {
        let mut documents = Vec::new();
        split("A Fox\nran.\n\n\nAway.\n***\n\n***\nB", 0, &mut documents);
        assert_eq!(documents, ["A Fox ran.\n\nAway.", "B"]);
    }

    #[test]
    fn prose_is_told_from_code() {
        let source = "//! A `row`.\nuse a;\n    /// Of [logits].\n    fn b() {} // not this\n// -----\n";
        assert_eq!(comment_prose(source).split_whitespace().collect::<Vec<_>>().join(" "), "A row. Of logits.");
        let page = "# Title\nSome *prose*.\n```\ncode\n```\n| table |\nMore.\n";
        assert_eq!(markdown_prose(page).split_whitespace().collect::<Vec<_>>().join(" "), "Some prose. More.");
    }

    #[test]
    fn shipped_text_is_there() -> Result<()> {
        let documents = documents(&[])?;
        assert!(documents.len() > 60 && documents.iter().all(|document| !document.contains(SEPARATOR)));
        Ok(())
    }
}
