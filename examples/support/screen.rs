//! Writes to a terminal: colours, frames drawn in place, and text cut to lines. If the output is not a terminal, it
//! writes an occasional line of progress.

use console::{measure_text_width, truncate_str};
use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// How often the terminal is redrawn, and how often a log gets a line.
const FRAME: Duration = Duration::from_millis(100);
const PROGRESS: Duration = Duration::from_secs(3);
/// Width of the labels, including the space before and after.
pub(crate) const LABEL_WIDTH: usize = 14;

/// How to write to the standard output.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Style {
    pub(crate) terminal: bool,
    pub(crate) color: bool,
}

impl Style {
    /// The abilities of the standard output and the user's choice (<https://no-color.org>).
    pub(crate) fn detect() -> Self {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let terminal = std::io::stdout().is_terminal() && !dumb;
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { terminal, color: terminal && !no_color }
    }

    /// Width of a line.
    pub(crate) fn width(self) -> usize {
        size().1.clamp(40, 120)
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.paint("1", text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.paint("2", text)
    }

    /// A lane's label in the lane's colour, padded.
    pub(crate) fn label(self, lane: usize, label: &str) -> String {
        const COLORS: [&str; 8] = ["36", "35", "32", "33", "34", "31", "96", "96"];
        let padded = format!(" {label:<width$}", width = LABEL_WIDTH - 1);
        self.paint(COLORS[lane % COLORS.len()], &padded)
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.color { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Rows and columns of the terminal.
pub(crate) fn size() -> (usize, usize) {
    let (rows, columns) = console::Term::stdout().size();
    (rows.into(), columns.into())
}

/// Draws frames in place until it is dropped or cancelled. If there is no terminal, it writes an occasional line of
/// progress. Both are rendered while a lock is held, and written afterwards, because a slow terminal must not delay the
/// worker.
pub(crate) async fn live(style: Style, frame: impl Fn() -> Vec<String>, progress: impl Fn() -> String) {
    if !style.terminal {
        loop {
            tokio::time::sleep(PROGRESS).await;
            let _ = writeln!(std::io::stdout(), "{}", progress());
        }
    }
    let mut canvas = Canvas { drawn: 0 };
    let mut frames = tokio::time::interval(FRAME);
    loop {
        frames.tick().await;
        canvas.draw(&frame());
    }
}

/// The part of the terminal that is drawn over. When dropped, it erases itself and shows the cursor again.
struct Canvas {
    /// Number of lines of the last frame.
    drawn: usize,
}

impl Canvas {
    fn draw(&mut self, lines: &[String]) {
        let mut out = String::from("\x1b[?25l");
        self.back(&mut out);
        for line in lines {
            let _ = write!(out, "{line}\x1b[K\r\n");
        }
        // Erase what a taller frame left below.
        out.push_str("\x1b[J");
        self.drawn = lines.len();
        flush(&out);
    }

    /// Moves to the first line of the last frame.
    fn back(&self, out: &mut String) {
        if self.drawn > 0 {
            let _ = write!(out, "\x1b[{}A\r", self.drawn);
        }
    }
}

impl Drop for Canvas {
    fn drop(&mut self) {
        let mut out = String::new();
        self.back(&mut out);
        out.push_str("\x1b[J\x1b[?25h");
        flush(&out);
    }
}

fn flush(text: &str) {
    let mut stdout = std::io::stdout().lock();
    // A closed terminal is no reason to fail, because the checks at the end still count.
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}

/// A number with a comma between thousands.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// The bytes of a text on one line, safe for a terminal, with a dot in place of each line break.
pub(crate) fn readable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let lines: Vec<String> = text.lines().map(words).filter(|line| !line.is_empty()).collect();
    lines.join(" · ").chars().filter(|c| !c.is_control()).collect()
}

/// The last lines of a wrapped text. Lines do not change while the text grows, so that one can read along.
pub(crate) fn tail(text: &str, width: usize, lines: usize) -> Vec<String> {
    let wrapped = wrap(text, width);
    if lines == 1 && wrapped.len() > 1 {
        // A single line cannot be read along, so let the text scroll through it.
        return vec![last_columns(text, width).to_owned()];
    }
    wrapped[wrapped.len().saturating_sub(lines)..].to_vec()
}

fn last_columns(text: &str, width: usize) -> &str {
    let starts = text.char_indices().rev().map(|(start, _)| &text[start..]);
    starts.take_while(|tail| measure_text_width(tail) <= width).last().unwrap_or("")
}

/// Lines of at most `width` columns, broken between words.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split(' ') {
        // A word longer than a line is cut. Scripts without spaces have such words.
        let word = truncate_str(word, width, "…");
        if !line.is_empty() && measure_text_width(&line) + 1 + measure_text_width(&word) > width {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(&word);
    }
    lines.push(line);
    lines
}

/// The first lines of a text.
pub(crate) fn excerpt(text: &[u8], width: usize, lines: usize) -> Vec<String> {
    let mut wrapped = wrap(&readable(text), width);
    if wrapped.len() > lines {
        wrapped.truncate(lines);
        if let Some(last) = wrapped.last_mut() {
            *last = truncate_str(&format!("{last} …"), width, "…").into_owned();
        }
    }
    wrapped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_hold_what_fits_and_stay_as_they_are_while_the_text_grows() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("incomprehensible", 7), ["incomp…"]);
        assert_eq!(wrap("", 7), [""]);
        assert_eq!(tail("one two three four", 7, 2), ["three", "four"]);
        assert_eq!(tail("one two three four five", 7, 2), ["three", "four", "five"][1..]);
        assert_eq!(tail("one two three", 7, 1), ["o three"]);
    }

    #[test]
    fn wide_characters_take_two_columns() {
        assert_eq!(last_columns("狐と葡萄", 5), "葡萄");
        assert_eq!(wrap("狐 と 葡萄", 4), ["狐", "と", "葡萄"]);
    }

    #[test]
    fn nothing_a_token_holds_reaches_the_terminal_as_a_command() {
        assert_eq!(readable(b"The\tFox\x1b[2J\n\nA Fox\xff"), "The Fox[2J · A Fox\u{fffd}");
    }

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!([0, 999, 1000, 200_019].map(grouped), ["0", "999", "1,000", "200,019"]);
    }
}
