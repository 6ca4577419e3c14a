//! Output of subcommands. Unlike `println!`, nothing here panics when a standard stream is closed or its disk full.

use std::io::{self, Write};
use unicode_width::UnicodeWidthStr;

/// Writes `text` to standard output. A reader may stop when it has seen enough, as `head` does; that is no error.
///
/// # Errors
/// When the text cannot be written for another reason.
pub(crate) fn say(text: &str) -> io::Result<()> {
    let mut to = io::stdout().lock();
    match to.write_all(text.as_bytes()).and_then(|()| to.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

/// As [`say`], for a command that can do nothing about a failure but report it. Returns whether the text was written.
pub(crate) fn said(command: &str, text: &str) -> bool {
    let written = say(text);
    if let Err(error) = &written {
        complain(&format!("{command}: cannot write to standard output: {error}"));
    }
    written.is_ok()
}

/// Whether the user wants colour (<https://no-color.org>).
pub(crate) fn wants_color() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Writes a line to standard error, if that is possible.
pub(crate) fn complain(line: &str) {
    let _ = io::stderr().lock().write_all(format!("{line}\n").as_bytes());
}

/// A number of things, such as "1 row" or "1,234 rows". `thing` is the word for one of them.
pub(crate) fn counted(number: u64, thing: &str) -> String {
    format!("{} {thing}{}", grouped(number), if number == 1 { "" } else { "s" })
}

/// Formats 1234567 as "1,234,567".
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The text with spaces behind it, up to this width in a terminal, where Chinese letters for example take two columns.
pub(crate) fn padded(text: &str, width: usize) -> String {
    format!("{text}{}", " ".repeat(width.saturating_sub(text.width())))
}

/// The text, or as much of its beginning as leaves room for a mark in this width.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let ends = text.char_indices().map(|(at, _)| at);
    let end = ends.take_while(|&end| text[..end].width() < width).last().unwrap_or(0);
    format!("{}…", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_letters_take_two_columns() {
        assert_eq!(padded("模型", 6), "模型  ");
        assert_eq!(padded("模型", 3), "模型");
        assert_eq!([cut("模型名字", 8), cut("模型名字", 7), cut("模型名字", 6)], ["模型名字", "模型名…", "模型…"]);
        assert_eq!(cut("abcd", 3), "ab…");
    }

    #[test]
    fn one_thing_is_not_many() {
        assert_eq!([0, 1, 2].map(|n| counted(n, "row")), ["0 rows", "1 row", "2 rows"]);
        assert_eq!(counted(1_234_567, "f32 logit"), "1,234,567 f32 logits");
    }
}
