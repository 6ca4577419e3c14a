//! Reads the texts to examine: one line of JSON each, `[1, 2, 3]` or `{"tokens": [1, 2, 3], "prompt_tokens": 1}`.

use super::Text;
use std::io::{self, BufRead, Read};

/// Longest line that is read by default, in bytes. That is a text of some two million tokens.
pub const MAX_LINE_BYTES: usize = 16 << 20;

/// A text that was read.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// All token ids of the text.
    pub tokens: Vec<u32>,
    /// How many of the first tokens are the prompt.
    #[serde(default)]
    pub prompt_tokens: usize,
}

/// Why reading stopped.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// A line does not contain a text.
    #[error("line {line}: {problem}")]
    Line {
        /// The number of the line, from 1.
        line: u64,
        /// What is wrong, and what would be right.
        problem: String,
    },
    /// The input cannot be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A result cannot be written.
    #[error("cannot write to standard output: {0}")]
    Unwritten(io::Error),
}

impl Line {
    /// The text.
    #[must_use]
    pub fn text(&self) -> Text<'_> {
        Text { tokens: &self.tokens, prompt_tokens: self.prompt_tokens }
    }

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let line = match bytes.iter().find(|byte| !byte.is_ascii_whitespace()) {
            Some(b'[') => serde_json::from_slice(bytes).map(|tokens| Self { tokens, prompt_tokens: 0 }),
            Some(b'{') => serde_json::from_slice(bytes),
            _ => return Err("is not JSON with token ids; write [1, 2, 3] or {\"tokens\": [1, 2, 3]}".to_owned()),
        };
        let line: Self = line.map_err(|error| place(&error))?;
        if line.prompt_tokens > line.tokens.len() {
            let message = format!(
                "prompt_tokens is {}, must be at most {}, the number of tokens",
                line.prompt_tokens,
                line.tokens.len()
            );
            return Err(message);
        }
        Ok(line)
    }
}

/// serde's message with the column only. serde's line number would be wrong, because each line of the file is parsed
/// alone.
fn place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let message = text.split(" at line ").next().unwrap_or(&text);
    format!("{message}, at column {}", error.column())
}

/// Reads texts from lines.
#[derive(Debug)]
pub struct Texts<R> {
    from: R,
    line: u64,
    most: usize,
    bytes: Vec<u8>,
}

impl<R: BufRead> Texts<R> {
    /// A reader of lines with at most `most` bytes.
    pub fn new(from: R, most: usize) -> Self {
        Self { from, line: 0, most, bytes: Vec::new() }
    }

    /// The next text and the number of its line, from 1. Empty lines are skipped.
    ///
    /// # Errors
    /// [`TextError`]. Nothing after it should be read.
    pub fn next_text(&mut self) -> Result<Option<(u64, Line)>, TextError> {
        loop {
            self.bytes.clear();
            let most = self.most as u64;
            // One more byte for the end of the line, and one to see that the line is too long.
            let read = self.from.by_ref().take(most.saturating_add(2)).read_until(b'\n', &mut self.bytes)?;
            if read == 0 {
                return Ok(None);
            }
            self.line += 1;
            let text = self.bytes.strip_suffix(b"\n").unwrap_or(&self.bytes);
            if text.len() > self.most {
                let problem = format!("has more than {most} bytes; raise --max-line-bytes if that is intended");
                return Err(TextError::Line { line: self.line, problem });
            }
            if text.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let line = Line::parse(text).map_err(|problem| TextError::Line { line: self.line, problem })?;
            return Ok(Some((self.line, line)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str, most: usize) -> Result<Vec<(u64, Line)>, String> {
        let mut texts = Texts::new(text.as_bytes(), most);
        let mut found = vec![];
        while let Some(line) = texts.next_text().map_err(|e| e.to_string())? {
            found.push(line);
        }
        Ok(found)
    }

    #[test]
    fn both_forms_are_read() {
        let text = "[1, 2]\n\n  {\"tokens\": [3], \"prompt_tokens\": 1}\r\n{\"tokens\":[]}";
        let line = |tokens: &[u32], prompt_tokens| Line { tokens: tokens.to_vec(), prompt_tokens };
        assert_eq!(all(text, 99), Ok(vec![(1, line(&[1, 2], 0)), (3, line(&[3], 1)), (4, line(&[], 0))]));
        assert_eq!((all("", 9), all("\n\n", 9)), (Ok(vec![]), Ok(vec![])));
    }

    #[test]
    fn mistakes_name_line_and_place() {
        for (text, expected) in [
            ("[1]\nhello", "line 2: is not JSON with token ids; write [1, 2, 3] or {\"tokens\": [1, 2, 3]}"),
            ("[1, -2]", "line 1: invalid value: integer `-2`, expected u32, at column 6"),
            ("[1,\n2]", "line 1: EOF while parsing a value, at column 3"),
            (
                "{\"tokens\": [1], \"prompt_tokens\": 2}",
                "line 1: prompt_tokens is 2, must be at most 1, the number of tokens",
            ),
            ("{\"prompt_tokens\": 2}", "line 1: missing field `tokens`, at column 20"),
            ("\n[123456789]", "line 2: has more than 10 bytes; raise --max-line-bytes if that is intended"),
        ] {
            assert_eq!(all(text, if text.contains("12345") { 10 } else { 99 }).unwrap_err(), expected);
        }
        assert!(all("{\"token\": [1]}", 99).unwrap_err().starts_with("line 1: unknown field `token`"));
        assert_eq!(all("[12345678]\n", 10).map(|lines| lines.len()), Ok(1), "as long as it may be");
    }
}
