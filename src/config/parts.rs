//! Reads values of a file, including those with parts. Every mistake in a value is found, each with its place.

use toml::{Table, Value};

/// A mistake in a value, and its place: empty for the value itself, or such as `.size` or `[2].bias`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Wrong {
    pub(super) at: String,
    pub(super) what: String,
}

/// The value that was read, or all mistakes in it.
pub(super) type Read<T> = Result<T, Vec<Wrong>>;

/// Most characters of a file that a message repeats.
const LONGEST_SHOWN: usize = 60;

/// A mistake about the value itself.
pub(super) fn wrong<T>(what: String) -> Read<T> {
    Err(vec![Wrong { at: String::new(), what }])
}

/// The same mistakes with their places as seen from outside. `outer` is the place of the value.
fn within(outer: &str, wrongs: Vec<Wrong>) -> impl Iterator<Item = Wrong> {
    wrongs.into_iter().map(move |Wrong { at, what }| Wrong { at: format!("{outer}{at}"), what })
}

/// A value as a message repeats it: on one line, and cut if it is long.
pub(super) fn shown(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), |text| format!("{text:?}"));
    let mut line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(LONGEST_SHOWN).collect();
    if text.chars().nth(LONGEST_SHOWN).is_some() {
        line += " ...";
    }
    line
}

fn not<T>(value: &Value, what: &str) -> Read<T> {
    wrong(format!("{} is not {what}", shown(value)))
}

pub(super) fn float(value: &Value) -> Read<f32> {
    let read = value.as_float().or_else(|| value.as_integer().map(|n| n as f64));
    read.map_or_else(|| not(value, "a number"), |x| Ok(x as f32))
}

pub(super) fn whole(value: &Value) -> Read<u32> {
    let read = value.as_integer().and_then(|n| u32::try_from(n).ok());
    read.map_or_else(|| not(value, "a whole number, 0 or more"), Ok)
}

pub(super) fn signed(value: &Value) -> Read<i32> {
    let read = value.as_integer().and_then(|n| i32::try_from(n).ok());
    read.map_or_else(|| not(value, "a whole number"), Ok)
}

pub(super) fn boolean(value: &Value) -> Read<bool> {
    value.as_bool().map_or_else(|| not(value, "true or false"), Ok)
}

pub(super) fn text(value: &Value) -> Read<String> {
    value.as_str().map_or_else(|| not(value, "a string"), |text| Ok(text.to_owned()))
}

pub(super) fn token(value: &Value) -> Read<u32> {
    let hint = "a token id, as the model's tokenizer produces them";
    value.as_integer().and_then(|n| u32::try_from(n).ok()).map_or_else(|| not(value, hint), Ok)
}

/// Such as `[198, 25]`.
pub(super) fn tokens(value: &Value) -> Read<Vec<u32>> {
    list(value, "token ids, such as [198, 25]", token)
}

/// Such as `["\n", ":"]`.
pub(super) fn texts(value: &Value) -> Read<Vec<String>> {
    list(value, "texts, such as [\"\\n\", \":\"]", text)
}

/// Such as `[198, [25, 220]]`: a single token, and two tokens in a row.
pub(super) fn sequences(value: &Value) -> Read<Vec<Vec<u32>>> {
    let sequence = |value: &Value| match value {
        Value::Array(_) => tokens(value),
        one => Ok(vec![token(one)?]),
    };
    list(value, "token ids, such as [198, [25, 220]], where several in a row are a list", sequence)
}

/// Reads all entries of a list `of` something.
pub(super) fn list<T>(value: &Value, of: &str, read: impl Fn(&Value) -> Read<T>) -> Read<Vec<T>> {
    let Some(entries) = value.as_array() else { return not(value, &format!("a list of {of}")) };
    let (mut list, mut wrongs) = (Vec::with_capacity(entries.len()), Vec::new());
    for (i, entry) in entries.iter().enumerate() {
        match read(entry) {
            Ok(entry) => list.push(entry),
            Err(wrong) => wrongs.extend(within(&format!("[{i}]"), wrong)),
        }
    }
    if wrongs.is_empty() { Ok(list) } else { Err(wrongs) }
}

/// The parts of a table while it is read. Every key that was not read is an unknown key.
pub(super) struct Parts<'v> {
    given: &'v Table,
    known: Vec<&'static str>,
    wrongs: Vec<Wrong>,
}

/// Reads a table with the function `read`, whose result counts only if nothing was wrong.
pub(super) fn table<T>(value: &Value, read: impl Fn(&mut Parts<'_>) -> T) -> Read<T> {
    let Value::Table(given) = value else {
        let mut parts = Parts { given: &Table::new(), known: Vec::new(), wrongs: Vec::new() };
        read(&mut parts);
        return not(value, &format!("a table with {}", parts.known.join(", ")));
    };
    let mut parts = Parts { given, known: Vec::new(), wrongs: Vec::new() };
    let made = read(&mut parts);
    let Parts { known, mut wrongs, .. } = parts;
    let unknown = given.keys().filter(|key| !known.contains(&key.as_str()));
    wrongs.extend(unknown.map(|key| Wrong { at: format!(".{key}"), what: super::file::no_such_key(key, &known) }));
    if wrongs.is_empty() { Ok(made) } else { Err(wrongs) }
}

impl Parts<'_> {
    /// Reads a part. `None`: it is absent or has a mistake.
    pub(super) fn part<T>(&mut self, key: &'static str, read: impl FnOnce(&Value) -> Read<T>) -> Option<T> {
        self.known.push(key);
        let read = read(self.given.get(key)?);
        read.map_err(|wrongs| self.wrongs.extend(within(&format!(".{key}"), wrongs))).ok()
    }

    /// Reads a part, or returns `absent` if there is none.
    pub(super) fn or<T>(&mut self, key: &'static str, absent: T, read: impl FnOnce(&Value) -> Read<T>) -> T {
        self.part(key, read).unwrap_or(absent)
    }

    /// Reads a part that is required.
    pub(super) fn needed<T>(&mut self, key: &'static str, read: impl FnOnce(&Value) -> Read<T>) -> Option<T> {
        if !self.given.contains_key(key) {
            self.wrong(key, "is required".to_owned());
        }
        self.part(key, read)
    }

    /// Adds a mistake about a part.
    pub(super) fn wrong(&mut self, key: &str, what: String) {
        self.wrongs.push(Wrong { at: format!(".{key}"), what });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Value {
        let table: Table = format!("x = {text}").parse().expect("TOML");
        table["x"].clone()
    }

    fn told<T: std::fmt::Debug>(read: Read<T>) -> Vec<String> {
        read.expect_err("a mistake").into_iter().map(|Wrong { at, what }| format!("{at}: {what}")).collect()
    }

    #[test]
    fn all_that_is_wrong_in_a_value_is_told_with_its_place() {
        let found = told(sequences(&value(r#"[1, "a", [2, -3, 4.5]]"#)));
        let hint = "is not a token id, as the model's tokenizer produces them";
        assert_eq!(found, [format!("[1]: \"a\" {hint}"), format!("[2][1]: -3 {hint}"), format!("[2][2]: 4.5 {hint}")]);
        let pair = |parts: &mut Parts<'_>| (parts.or("size", 0, whole), parts.needed("bias", float));
        assert_eq!(table(&value("{ size = 3, bias = 1 }"), pair), Ok((3, Some(1.0))));
        assert_eq!(told(table(&value("5"), pair)), [": 5 is not a table with size, bias"]);
        let found = told(table(&value("{ size = -1, sise = 2 }"), pair));
        let expected = [
            ".size: -1 is not a whole number, 0 or more",
            ".bias: is required",
            ".sise: unknown key; did you mean size?",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_mistake_is_one_short_line() {
        let long = value(&format!("[{}]", "1, ".repeat(10_000)));
        let found = told(float(&long)).concat();
        assert!(found.len() < 100 && found.ends_with(" ... is not a number"), "{found}");
        assert_eq!(told(float(&value("\"\"\"a\nb\"\"\""))), [r#": "a\nb" is not a number"#]);
        assert_eq!(told(float(&value("[\"\"\"a\nb\"\"\"]"))).concat().lines().count(), 1);
    }
}
