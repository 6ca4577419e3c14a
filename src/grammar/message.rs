//! What the compiler of grammars says, in words for whoever wrote the grammar.

/// What is said where the compiler does not say what is wrong.
pub(super) const FAILS: &str = "the grammar compiler failed on it";
/// The most characters of a compiler's message.
const MAX_TOLD: usize = 300;
/// The most characters of the place that it is about.
const MAX_PLACE: usize = 150;
/// The most characters of all that is said.
const MOST: usize = 500;

/// A compiler's message, on one line of bounded length.
pub(super) fn told(error: &impl std::fmt::Display) -> String {
    let text = error.to_string();
    // The compiler's panics come with their source positions.
    if text.starts_with("panic: ") {
        return FAILS.to_owned();
    }
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let words = words.trim_end_matches("<non-verbose/>").trim_end();
    // The rest names limits that only the embedding program can raise, or lists tokens by properties they lack.
    let rest = ["; either increase limits", "; following special tokens"];
    let words = rest.iter().fold(words, |words, rest| words.split(rest).next().unwrap_or_default());
    let words = match words.strip_prefix("Unimplemented keys: ") {
        Some(keys) => format!("has keywords that no grammar can follow here: {keys}; write the schema without them"),
        None => words.to_owned(),
    };
    cut(&words, MAX_TOLD)
}

/// A message of bounded length: it may quote what was written.
pub(super) fn bounded(words: &str) -> String {
    cut(words, MOST)
}

/// The same with the place in a schema that it is about, if that is known, which is a pointer.
pub(super) fn placed(words: &str, pointer: Option<&str>) -> String {
    let words = cut(words, MAX_TOLD);
    match pointer {
        None => words,
        Some("") => words + " (at the root)",
        Some(pointer) => format!("{words} (at {})", cut(pointer, MAX_PLACE)),
    }
}

fn cut(words: &str, most: usize) -> String {
    match words.char_indices().nth(most) {
        None => words.to_owned(),
        Some((end, _)) => words[..end].to_owned() + " ...",
    }
}

/// The same of a grammar that was translated: places in the translation tell nothing.
pub(super) fn told_of_translation(error: &impl std::fmt::Display) -> String {
    let text = error.to_string();
    let behind_place = text.split_once("): ").filter(|(place, _)| place.starts_with("at ")).map(|(_, what)| what);
    told(&behind_place.and_then(|what| what.lines().next()).unwrap_or(&text))
}

/// The same of a grammar that is an expression. The compiler wraps it in a rule and points into that.
pub(super) fn told_of_expression(error: &impl std::fmt::Display) -> String {
    let text = error.to_string();
    match wrong_part(&text) {
        Some((what, at)) => told(&format!("{what}, at character {at}")),
        None if text.contains("lookarounds not supported") => {
            "has a word boundary or an anchor inside, such as \\b; none can be followed".to_owned()
        }
        None => told(&text),
    }
}

/// What is wrong with an expression of one line, and at which of its characters, from 1 on: the parser shows the expression
/// with a mark below it.
fn wrong_part(text: &str) -> Option<(&str, usize)> {
    let mut lines = text.split_once("regex parse error:")?.1.lines().skip(1);
    let (shown, mark) = (lines.next()?, lines.next()?);
    let what = lines.next()?.strip_prefix("error: ")?;
    let indent = shown.len() - shown.trim_start().len();
    let at = mark.find('^')?.checked_sub(indent)?;
    mark.trim().chars().all(|c| c == '^').then_some((what, at + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_character_at_fault_is_named() {
        let error = "at 1(8): invalid regex \"a(b\" (in regex): regex parse error:\n    a(b\n     ^\nerror: unclosed group\n1 | start: /a(b/\n";
        assert_eq!(told_of_expression(&error), "unclosed group, at character 2");
        let many = "regex parse error:\n~~~~\n1: a\n2: (b\n   ^\n~~~~\nerror: unclosed group\n";
        assert_eq!(told_of_expression(&many), told(&many), "of several lines, the message is kept as it is");
    }

    #[test]
    fn a_message_is_one_line_of_bounded_length() {
        assert_eq!(told(&"two\n  lines"), "two lines");
        assert_eq!(told(&"x".repeat(999)).chars().count(), MAX_TOLD + 4);
        assert_eq!(told(&"panic: at src/file.rs"), FAILS);
        let places = "at 2(5): Token range end too large: 99999\n1 | start: r0\n2 | r0: <[99999]>\n        ^";
        assert_eq!(told_of_translation(&places), "Token range end too large: 99999");
    }
}
