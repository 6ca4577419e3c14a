//! Lark's `~`, which stands for every other sequence of bytes: also bytes that are no text, among which the compiler counts
//! the names of control tokens. Here it stands for every other text.

/// What a complement is met with: all texts.
const TEXT: &str = "/(?s:.*)/";

/// A Lark grammar with a terminal `~X & TEXT` of its own in place of each `~X`, because a rule may not have an `&`. What
/// cannot be understood stays as it is, for the compiler to report.
pub(super) fn of_texts(lark: &str) -> String {
    let (mut name, mut found) = ("NOT_".to_owned(), Vec::new());
    while lark.contains(&name) {
        name.push('_');
    }
    let mut written = replaced(lark, &name, &mut found);
    for (at, atom) in found.iter().enumerate() {
        written += &format!("\n{name}{at}: ~{atom} & {TEXT}");
    }
    written
}

/// A text with such names for its complements. Adds what these are complements of.
fn replaced(text: &str, name: &str, found: &mut Vec<String>) -> String {
    let mut written = String::with_capacity(text.len());
    let mut left = text;
    while let Some(first) = left.chars().next() {
        let (part, behind) = match complemented(left) {
            Some(end) => {
                let atom = replaced(&left[1..end], name, found);
                written += &format!("{name}{}", found.len());
                found.push(atom);
                left = &left[end..];
                continue;
            }
            None => left.split_at(token(left).unwrap_or(first.len_utf8())),
        };
        written.push_str(part);
        left = behind;
    }
    written
}

/// Where the atom behind a `~` ends, if the text begins with one that is no repetition (`x~3`).
fn complemented(text: &str) -> Option<usize> {
    let behind = text.strip_prefix('~')?;
    let start = text.len() - behind.trim_start_matches([' ', '\t']).len();
    let atom = &text[start..];
    if atom.starts_with(|c: char| c.is_ascii_digit() || c == '+' || c == '-') {
        return None;
    }
    let length = if atom.starts_with(['(', '[']) { group(atom)? } else { value(atom)? };
    Some(start + length)
}

/// The length of a string, an expression or a name at the beginning of a text; of a range of characters as a whole.
fn value(text: &str) -> Option<usize> {
    let length = quoted(text).or_else(|| expression(text)).or_else(|| name(text))?;
    let behind = &text[length..];
    let range =
        behind.trim_start_matches([' ', '\t']).strip_prefix("..").map(|end| end.trim_start_matches([' ', '\t']));
    match range.and_then(|end| quoted(end).map(|last| text.len() - end.len() + last)) {
        Some(whole) if text.starts_with('"') => Some(whole),
        _ => Some(length),
    }
}

/// The length of what is in brackets, with these.
fn group(text: &str) -> Option<usize> {
    let (mut depth, mut at) = (0usize, 0);
    while let Some(first) = text[at..].chars().next() {
        match first {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        at += token(&text[at..]).unwrap_or(first.len_utf8());
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

/// The length of a string, an expression or a comment at the beginning of a text, in which no sign has a meaning.
fn token(text: &str) -> Option<usize> {
    let is_comment = text.starts_with('#') || text.starts_with("//");
    let comment = || is_comment.then(|| text.find('\n').unwrap_or(text.len()));
    quoted(text).or_else(comment).or_else(|| expression(text))
}

/// The length of a string, with its flag.
fn quoted(text: &str) -> Option<usize> {
    let end = closed(text, '"')?;
    Some(end + usize::from(text[end..].starts_with('i')))
}

/// The length of an expression, with its flags.
fn expression(text: &str) -> Option<usize> {
    let end = closed(text, '/').filter(|&end| end > 2)?;
    let flags = text[end..].find(|c: char| !"imslux".contains(c)).unwrap_or(text.len() - end);
    Some(end + flags)
}

/// The length of what begins and ends with the same sign; a backslash hides the sign behind it.
fn closed(text: &str, sign: char) -> Option<usize> {
    let mut chars = text.strip_prefix(sign)?.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => _ = chars.next()?,
            '\n' if sign == '"' => return None,
            c if c == sign => return Some(at + 2),
            _ => {}
        }
    }
    None
}

/// The length of a name of a rule or terminal.
fn name(text: &str) -> Option<usize> {
    let begins = |c: char| c.is_ascii_alphabetic() || c == '_';
    let end = text.find(|c: char| !(begins(c) || c.is_ascii_digit() || c == '-')).unwrap_or(text.len());
    (end > 0 && text.starts_with(begins)).then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_complement_is_one_of_texts() {
        let whole = |rest: &str, atoms: &[&str]| {
            let of = |(at, atom): (usize, &&str)| format!("\nNOT_{at}: ~{atom} & {TEXT}");
            rest.to_owned() + &atoms.iter().enumerate().map(of).collect::<String>()
        };
        for (written, expected) in [
            ("A: ~/a*/", whole("A: NOT_0", &["/a*/"])),
            ("A: /b/ & ~ \"a\\\"~\"i+ // ~x\nB: ~A", whole("A: /b/ & NOT_0+ // ~x\nB: NOT_1", &[" \"a\\\"~\"i", "A"])),
            ("A: ~(/a\\/~/s | ~[B] C) # ~", whole("A: NOT_1 # ~", &["[B]", "(/a\\/~/s | NOT_0 C)"])),
            ("a: ~\"a\" .. \"c\"", whole("a: NOT_0", &["\"a\" .. \"c\""])),
            ("a: ~NOT_0\nNOT_0: \"a\"", "a: NOT__0\nNOT_0: \"a\"\nNOT__0: ~NOT_0 & ".to_owned() + TEXT),
            // Repetitions, words in strings, and schemas.
            ("a: \"x\"~3 B ~ 2..4 \"~y\" /~z/", "a: \"x\"~3 B ~ 2..4 \"~y\" /~z/".to_owned()),
            ("a: %json {\"const\": \"~a\"}", "a: %json {\"const\": \"~a\"}".to_owned()),
        ] {
            assert_eq!(of_texts(written), expected);
        }
        for wrong in ["A: ~", "A: ~(", "A: ~\"a", "A: ~/a", "A: ~~B)", "A: ~(]", "~"] {
            assert_eq!(of_texts(wrong).matches('~').count(), wrong.matches('~').count(), "{wrong}");
        }
    }
}
