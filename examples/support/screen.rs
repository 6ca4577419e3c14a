//! Writing on a terminal: colours, frames that are drawn in place, and text cut to lines. Where the output is no
//! terminal, a line of progress now and then.

use console::{measure_text_width, truncate_str};
use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// How often the terminal is redrawn, and how often a log gets a line.
const FRAME: Duration = Duration::from_millis(100);
const PROGRESS: Duration = Duration::from_secs(3);
/// Columns of the labels, the space before and after included.
pub(crate) const LABEL_WIDTH: usize = 14;

/// How to write on the standard output.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Style {
    pub(crate) terminal: bool,
    pub(crate) color: bool,
}

impl Style {
    /// What the standard output can show and the user wants (<https://no-color.org>).
    pub(crate) fn detect() -> Self {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let terminal = std::io::stdout().is_terminal() && !dumb;
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { terminal, color: terminal && !no_color }
    }

    /// Columns of a line.
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

/// Draws frames in place until dropped or cancelled; where there is no terminal, a line of progress now and then.
/// Both are rendered under a lock of their own, and written after: a slow terminal must not hold up the worker.
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

/// The part of the terminal that is drawn over. Erases itself and gives the cursor back when dropped.
struct Canvas {
    /// Lines of the last frame.
    drawn: usize,
}

impl Canvas {
    fn draw(&mut self, lines: &[String]) {
        let mut out = String::from("\x1b[?25l");
        self.back(&mut out);
        for line in lines {
            let _ = write!(out, "{line}\x1b[K\r\n");
        }
        // Whatever a taller frame left below.
        out.push_str("\x1b[J");
        self.drawn = lines.len();
        flush(&out);
    }

    /// To the first line of the last frame.
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
    // A closed terminal is no reason to fail: the checks at the end still count.
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

/// Bytes of a text on one line, harmless to a terminal, with a dot where a line began.
pub(crate) fn readable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let lines: Vec<String> = text.lines().map(words).filter(|line| !line.is_empty()).collect();
    lines.join(" · ").chars().filter(|c| !c.is_control()).collect()
}

/// The last lines of a wrapped text. Lines stay as they are while the text grows, so one can read along.
pub(crate) fn tail(text: &str, width: usize, lines: usize) -> Vec<String> {
    let wrapped = wrap(text, width);
    if lines == 1 && wrapped.len() > 1 {
        // With one line there is none to read along on: let it run through.
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
        // A word longer than a line is cut: scripts without spaces have such.
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
