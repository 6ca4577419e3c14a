//! YAML as a tree that knows where each part stands in the text, so that the text can be changed and not written anew.
//!
//! Scalars stay as they are written: what `0644` or `yes` means depends on the version of YAML, and is not asked here.

use granit_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput};

/// Deeper than any manifest.
const DEEPEST: usize = 100;

/// What is wrong with a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mistake {
    /// The line, from 1.
    pub(super) line: usize,
    pub(super) problem: String,
}

/// Where a node stands: bytes of the text, the line from 1 and the column from 0.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Place {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) line: usize,
    pub(super) column: usize,
}

#[derive(Debug, Clone)]
pub(super) enum What {
    /// `plain`: without quotes, so that it may be a number, a boolean or null.
    Scalar {
        text: String,
        plain: bool,
    },
    List(Vec<Node>),
    Map(Vec<(Node, Node)>),
    /// Stands for another node. Nothing is changed through one.
    Alias,
}

#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) what: What,
    pub(super) place: Place,
}

/// The documents of a text.
pub(super) fn parse(text: &str) -> Result<Vec<Node>, Mistake> {
    let mut reader = Reader { parser: Parser::new_from_str(text) };
    let mut documents = Vec::new();
    loop {
        match reader.next()?.0 {
            Event::DocumentStart(..) => documents.push(reader.node(0)?),
            Event::StreamEnd => return Ok(documents),
            _ => {}
        }
    }
}

struct Reader<'a> {
    parser: Parser<'a, StrInput<'a>>,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Span), Mistake> {
        let wrong = |e: ScanError| Mistake { line: e.marker().line(), problem: e.info() };
        loop {
            match self.parser.next_event() {
                // What it names follows.
                Some(Ok((Event::Anchor(..), _))) => {}
                Some(next) => return next.map_err(wrong),
                None => return Ok((Event::StreamEnd, Span::default())),
            }
        }
    }

    fn node(&mut self, depth: usize) -> Result<Node, Mistake> {
        let (event, span) = self.next()?;
        self.node_of(event, span, depth)
    }

    fn node_of(&mut self, event: Event<'a>, span: Span, depth: usize) -> Result<Node, Mistake> {
        let mut place = place(span);
        if depth > DEEPEST {
            return Err(Mistake { line: place.line, problem: format!("deeper than {DEEPEST} levels") });
        }
        let what = match event {
            Event::Scalar(text, style, ..) => {
                What::Scalar { text: text.into_owned(), plain: style == ScalarStyle::Plain }
            }
            Event::SequenceStart(..) => What::List(self.items(&mut place, depth)?),
            Event::MappingStart(..) => What::Map(self.entries(&mut place, depth)?),
            _ => What::Alias,
        };
        Ok(Node { what, place })
    }

    fn items(&mut self, place: &mut Place, depth: usize) -> Result<Vec<Node>, Mistake> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, span) => {
                    place.end = end(span);
                    return Ok(items);
                }
                (event, span) => items.push(self.node_of(event, span, depth + 1)?),
            }
        }
    }

    fn entries(&mut self, place: &mut Place, depth: usize) -> Result<Vec<(Node, Node)>, Mistake> {
        let mut entries: Vec<(Node, Node)> = Vec::new();
        loop {
            let key = match self.next()? {
                (Event::MappingEnd, span) => {
                    place.end = end(span);
                    return Ok(entries);
                }
                (event, span) => self.node_of(event, span, depth + 1)?,
            };
            if let Some(twice) = key.text().filter(|text| entries.iter().any(|(known, _)| known.text() == Some(text))) {
                let problem = format!("the key {twice} is there twice");
                return Err(Mistake { line: key.place.line, problem });
            }
            let mut value = self.node(depth + 1)?;
            if value.place.start >= value.place.end && value.is_null() {
                // Nothing stands there; it would stand behind its key.
                (value.place.start, value.place.end) = (key.place.end, key.place.end);
            }
            entries.push((key, value));
        }
    }
}

fn place(span: Span) -> Place {
    let bytes = span.byte_range().unwrap_or_default();
    Place { start: bytes.start, end: bytes.end, line: span.start.line(), column: span.start.col() }
}

fn end(span: Span) -> usize {
    span.byte_range().unwrap_or_default().end
}

impl Node {
    fn made(what: What) -> Self {
        Self { what, place: Place::default() }
    }

    /// A string.
    pub(super) fn string(text: impl Into<String>) -> Self {
        Self::made(What::Scalar { text: text.into(), plain: false })
    }

    /// A number or a boolean.
    pub(super) fn plain(text: impl ToString) -> Self {
        Self::made(What::Scalar { text: text.to_string(), plain: true })
    }

    pub(super) fn list(items: impl IntoIterator<Item = Node>) -> Self {
        Self::made(What::List(items.into_iter().collect()))
    }

    pub(super) fn map<K: Into<String>>(entries: impl IntoIterator<Item = (K, Node)>) -> Self {
        Self::made(What::Map(entries.into_iter().map(|(key, value)| (Node::string(key), value)).collect()))
    }

    /// The text of a scalar.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.what {
            What::Scalar { text, .. } => Some(text),
            _ => None,
        }
    }

    pub(super) fn items(&self) -> &[Node] {
        match &self.what {
            What::List(items) => items,
            _ => &[],
        }
    }

    pub(super) fn entries(&self) -> &[(Node, Node)] {
        match &self.what {
            What::Map(entries) => entries,
            _ => &[],
        }
    }

    /// The value of a key of a map.
    pub(super) fn get(&self, key: &str) -> Option<&Node> {
        self.entries().iter().find(|(known, _)| known.text() == Some(key)).map(|(_, value)| value)
    }

    /// The value behind several keys.
    pub(super) fn at(&self, path: &[&str]) -> Option<&Node> {
        path.iter().try_fold(self, |node, key| node.get(key))
    }

    pub(super) fn is_null(&self) -> bool {
        matches!(&self.what, What::Scalar { text, plain: true } if matches!(text.as_str(), "" | "~" | "null"))
    }

    /// Whether a scalar is a string, whichever version of YAML reads it.
    fn is_string(&self) -> bool {
        const WORDS: [&str; 12] = ["", "~", "null", "true", "false", "yes", "no", "on", "off", "y", "n", ".nan"];
        match &self.what {
            What::Scalar { text, plain: true } => {
                // Decimal, with an exponent, of another base, or of base 60.
                let digits = |c: char| c.is_ascii_hexdigit() || "+-._:xXoO".contains(c);
                let unsigned = text.trim_start_matches(['+', '-', '.']);
                let number = unsigned.starts_with(|c: char| c.is_ascii_digit()) && unsigned.chars().all(digits)
                    || unsigned.eq_ignore_ascii_case("inf");
                !number && !WORDS.contains(&text.to_ascii_lowercase().as_str())
            }
            _ => true,
        }
    }

    /// Whether it stands for the same, in whatever style it is written.
    pub(super) fn same(&self, other: &Self) -> bool {
        match (&self.what, &other.what) {
            (What::Scalar { text: a, .. }, What::Scalar { text: b, .. }) => {
                a == b && self.is_string() == other.is_string()
            }
            (What::List(a), What::List(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.same(b)),
            (What::Map(a), What::Map(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.0.same(&b.0) && a.1.same(&b.1))
            }
            (What::Alias, What::Alias) => true,
            _ => false,
        }
    }

    /// Whether it has all that `wanted` has. Who stores an object adds what was left out, to maps and to lists of them.
    pub(super) fn says(&self, wanted: &Self) -> bool {
        match (&self.what, &wanted.what) {
            (What::Map(_), What::Map(entries)) => entries
                .iter()
                .all(|(key, value)| key.text().and_then(|key| self.get(key)).is_some_and(|own| own.says(value))),
            (What::List(own), What::List(items)) => {
                let more = items.iter().all(|item| matches!(item.what, What::Map(_)));
                let fits = own.len() == items.len() || own.len() > items.len() && more;
                fits && own.iter().zip(items).all(|(own, item)| own.says(item))
            }
            _ => self.same(wanted),
        }
    }

    /// On one line, as JSON, which is YAML too.
    pub(super) fn in_line(&self) -> String {
        let joined = |parts: Vec<String>| parts.join(", ");
        match &self.what {
            What::Scalar { text, .. } if !self.is_string() => text.clone(),
            What::Scalar { text, .. } => quoted(text),
            What::List(items) => format!("[{}]", joined(items.iter().map(Node::in_line).collect())),
            What::Map(entries) => {
                let entry = |(key, value): &(Node, Node)| format!("{}: {}", key.in_line(), value.in_line());
                format!("{{{}}}", joined(entries.iter().map(entry).collect()))
            }
            What::Alias => unreachable!("none is made, and those that are read are not written"),
        }
    }

    /// As lines, of a map or a list without indentation, of a scalar one.
    pub(super) fn lines(&self) -> Vec<String> {
        match &self.what {
            What::List(items) if !items.is_empty() => items.iter().flat_map(Node::item_lines).collect(),
            What::Map(entries) if !entries.is_empty() => {
                entries.iter().flat_map(|(key, value)| entry_lines(&key.scalar(), value)).collect()
            }
            What::Scalar { .. } => vec![self.scalar()],
            _ => vec![self.in_line()],
        }
    }

    /// As lines of an item of a list.
    pub(super) fn item_lines(&self) -> Vec<String> {
        self.lines().iter().enumerate().map(|(i, line)| format!("{}{line}", if i == 0 { "- " } else { "  " })).collect()
    }

    fn scalar(&self) -> String {
        let text = self.text().unwrap_or_default();
        let bare = |c: char| c.is_ascii_alphanumeric() || "_./-=:@".contains(c);
        let begins =
            text.strip_prefix("--").unwrap_or(text).starts_with(|c: char| c.is_ascii_alphanumeric() || c == '/');
        let unmistakable = begins && text.chars().all(bare) && !text.ends_with(':') && Node::plain(text).is_string();
        if unmistakable || !self.is_string() { text.to_owned() } else { quoted(text) }
    }
}

/// As lines of an entry of a map.
pub(super) fn entry_lines(key: &str, value: &Node) -> Vec<String> {
    let lines = value.lines();
    let nested = match &value.what {
        What::List(items) => !items.is_empty(),
        What::Map(entries) => !entries.is_empty(),
        _ => false,
    };
    if !nested {
        return vec![format!("{key}: {}", lines.concat())];
    }
    std::iter::once(format!("{key}:")).chain(lines.iter().map(|line| format!("  {line}"))).collect()
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
