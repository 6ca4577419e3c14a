//! YAML as a tree in which each node knows its place in the text. So the text can be edited in place and need not be
//! written anew.
//!
//! Scalars stay as they are written. What `0644` or `yes` means depends on the version of YAML, and does not matter
//! here.

use granit_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput};
use std::collections::HashMap;
use std::rc::Rc;

/// Deepest nesting that is read, including what aliases stand for. It is more than any manifest has.
const DEEPEST: usize = 100;

/// What is wrong with a text, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mistake {
    /// The number of the line, from 1.
    pub(super) line: usize,
    pub(super) problem: String,
}

/// The place of a node: bytes of the text, the line from 1 and the column from 0.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Stretch {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) line: usize,
    pub(super) column: usize,
}

/// The kind of a node, with its content.
#[derive(Debug, Clone)]
pub(super) enum NodeKind {
    /// `plain`: it has no quotes, so that it may be a number, a boolean or null.
    Scalar {
        text: String,
        plain: bool,
    },
    List(Vec<Node>),
    Map(Vec<(Node, Node)>),
    /// Stands for the node with this anchor, and is read as that node. It is never used to change anything.
    Alias(usize, Rc<Node>),
}

#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) kind: NodeKind,
    pub(super) place: Stretch,
    /// The anchor that aliases refer to: a number that no other node of the text has.
    pub(super) anchor: Option<usize>,
}

/// Parses the documents of a text.
pub(super) fn parse(text: &str) -> Result<Vec<Node>, Mistake> {
    let mut reader = Reader { parser: Parser::new_from_str(text), anchored: HashMap::new() };
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
    /// The nodes that aliases may refer to, by anchor, each with its depth.
    anchored: HashMap<usize, (Rc<Node>, usize)>,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Span), Mistake> {
        let wrong = |e: ScanError| Mistake { line: e.marker().line(), problem: e.info() };
        self.parser.next_event().map_or_else(|| Ok((Event::StreamEnd, Span::default())), |next| next.map_err(wrong))
    }

    fn node(&mut self, depth: usize) -> Result<Node, Mistake> {
        let (event, span) = self.next()?;
        self.node_of(event, span, depth)
    }

    fn node_of(&mut self, event: Event<'a>, span: Span, depth: usize) -> Result<Node, Mistake> {
        let mut place = place(span);
        if depth > DEEPEST {
            return Err(too_deep(place.line));
        }
        let anchor = event.anchor_id();
        let kind = match event {
            Event::Scalar(text, style, ..) => {
                NodeKind::Scalar { text: text.into_owned(), plain: style == ScalarStyle::Plain }
            }
            Event::SequenceStart(..) => NodeKind::List(self.items(&mut place, depth)?),
            Event::MappingStart(..) => NodeKind::Map(self.entries(&mut place, depth)?),
            Event::Alias(anchor) => NodeKind::Alias(anchor, self.meant(anchor, place.line)?),
            _ => {
                return Err(Mistake { line: place.line, problem: "a value is missing".to_owned() });
            }
        };
        let node = Node { kind, place, anchor };
        if let Some(anchor) = anchor {
            let levels = self.levels(&node);
            if levels > DEEPEST {
                return Err(too_deep(place.line));
            }
            self.anchored.insert(anchor, (Rc::new(node.clone()), levels));
        }
        Ok(node)
    }

    /// The node that an alias stands for.
    fn meant(&self, anchor: usize, line: usize) -> Result<Rc<Node>, Mistake> {
        // An anchor becomes known when its node has ended.
        let itself =
            || Mistake { line, problem: "an alias stands inside the node that it refers to; write it out".to_owned() };
        self.anchored.get(&anchor).map(|(node, _)| Rc::clone(node)).ok_or_else(itself)
    }

    fn levels(&self, node: &Node) -> usize {
        let inner = match &node.kind {
            NodeKind::Scalar { .. } => return 1,
            NodeKind::Alias(anchor, _) => return self.anchored.get(anchor).map_or(1, |(_, levels)| *levels),
            NodeKind::List(items) => items.iter().map(|item| self.levels(item)).max(),
            NodeKind::Map(entries) => entries.iter().map(|(_, value)| self.levels(value)).max(),
        };
        1 + inner.unwrap_or_default()
    }

    fn items(&mut self, place: &mut Stretch, depth: usize) -> Result<Vec<Node>, Mistake> {
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

    fn entries(&mut self, place: &mut Stretch, depth: usize) -> Result<Vec<(Node, Node)>, Mistake> {
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
                let problem = format!("the key {twice} appears twice");
                return Err(Mistake { line: key.place.line, problem });
            }
            let mut value = self.node(depth + 1)?;
            if value.place.start >= value.place.end && value.is_null() {
                // The value is empty. A value would be written after its key.
                (value.place.start, value.place.end) = (key.place.end, key.place.end);
            }
            entries.push((key, value));
        }
    }
}

fn too_deep(line: usize) -> Mistake {
    Mistake { line, problem: format!("nested deeper than {DEEPEST} levels") }
}

fn place(span: Span) -> Stretch {
    let bytes = span.byte_range().unwrap_or_default();
    Stretch { start: bytes.start, end: bytes.end, line: span.start.line(), column: span.start.col() }
}

fn end(span: Span) -> usize {
    span.byte_range().unwrap_or_default().end
}

impl Node {
    fn made(kind: NodeKind) -> Self {
        Self { kind, place: Stretch::default(), anchor: None }
    }

    /// Makes a string.
    pub(super) fn string(text: impl Into<String>) -> Self {
        Self::made(NodeKind::Scalar { text: text.into(), plain: false })
    }

    /// Makes a number or a boolean.
    pub(super) fn plain(text: impl ToString) -> Self {
        Self::made(NodeKind::Scalar { text: text.to_string(), plain: true })
    }

    pub(super) fn list(items: impl IntoIterator<Item = Node>) -> Self {
        Self::made(NodeKind::List(items.into_iter().collect()))
    }

    pub(super) fn map<K: Into<String>>(entries: impl IntoIterator<Item = (K, Node)>) -> Self {
        Self::made(NodeKind::Map(entries.into_iter().map(|(key, value)| (Node::string(key), value)).collect()))
    }

    /// The node itself, or the node that an alias stands for.
    fn real(&self) -> &Node {
        match &self.kind {
            NodeKind::Alias(_, node) => node,
            _ => self,
        }
    }

    /// The text of a scalar.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.real().kind {
            NodeKind::Scalar { text, .. } => Some(text),
            _ => None,
        }
    }

    pub(super) fn items(&self) -> &[Node] {
        match &self.real().kind {
            NodeKind::List(items) => items,
            _ => &[],
        }
    }

    pub(super) fn entries(&self) -> &[(Node, Node)] {
        match &self.real().kind {
            NodeKind::Map(entries) => entries,
            _ => &[],
        }
    }

    /// The entry of a map with this key.
    pub(super) fn entry(&self, key: &str) -> Option<&(Node, Node)> {
        self.entries().iter().find(|(known, _)| known.text() == Some(key))
    }

    /// The value of a map's key.
    pub(super) fn get(&self, key: &str) -> Option<&Node> {
        self.entry(key).map(|(_, value)| value)
    }

    /// The value at a path of keys.
    pub(super) fn at(&self, path: &[&str]) -> Option<&Node> {
        path.iter().try_fold(self, |node, key| node.get(key))
    }

    pub(super) fn is_null(&self) -> bool {
        matches!(&self.real().kind, NodeKind::Scalar { text, plain: true } if matches!(text.as_str(), "" | "~" | "null"))
    }

    /// Whether a scalar is a string in every version of YAML.
    pub(super) fn is_string(&self) -> bool {
        const WORDS: [&str; 12] = ["", "~", "null", "true", "false", "yes", "no", "on", "off", "y", "n", ".nan"];
        match &self.kind {
            NodeKind::Scalar { text, plain: true } => {
                // Decimal, with an exponent, in another base, or in base 60.
                let digits = |c: char| c.is_ascii_hexdigit() || "+-._:xXoO".contains(c);
                let unsigned = text.trim_start_matches(['+', '-', '.']);
                let number = unsigned.starts_with(|c: char| c.is_ascii_digit()) && unsigned.chars().all(digits)
                    || unsigned.eq_ignore_ascii_case("inf");
                !number && !WORDS.contains(&text.to_ascii_lowercase().as_str())
            }
            _ => true,
        }
    }

    /// Whether the two have the same meaning, in whatever style they are written. Their anchors must also have the same
    /// aliases.
    pub(super) fn same(&self, other: &Self) -> bool {
        let what = match (&self.kind, &other.kind) {
            (NodeKind::List(a), NodeKind::List(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.same(b)),
            (NodeKind::Map(a), NodeKind::Map(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.0.same(&b.0) && a.1.same(&b.1))
            }
            (NodeKind::Alias(a, _), NodeKind::Alias(b, _)) => a == b,
            _ => self.same_scalar(other),
        };
        what && self.anchor == other.anchor
    }

    fn same_scalar(&self, other: &Self) -> bool {
        match (&self.kind, &other.kind) {
            (NodeKind::Scalar { text: a, .. }, NodeKind::Scalar { text: b, .. }) => {
                a == b && self.is_string() == other.is_string()
            }
            _ => false,
        }
    }

    /// Whether the node has everything that `wanted` has. It may have more: whoever stores an object fills in omitted
    /// fields, in maps and in lists of maps.
    pub(super) fn says(&self, wanted: &Self) -> bool {
        let own = self.real();
        match (&own.kind, &wanted.kind) {
            (NodeKind::Map(_), NodeKind::Map(entries)) => entries
                .iter()
                .all(|(key, value)| key.text().and_then(|key| own.get(key)).is_some_and(|own| own.says(value))),
            (NodeKind::List(has), NodeKind::List(items)) => {
                let more = items.iter().all(|item| matches!(item.kind, NodeKind::Map(_)));
                let fits = has.len() == items.len() || has.len() > items.len() && more;
                fits && has.iter().zip(items).all(|(own, item)| own.says(item))
            }
            _ => own.same_scalar(wanted),
        }
    }
}
