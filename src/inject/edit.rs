//! Edits a YAML text and leaves every other byte as it is, comments included.
//!
//! There are two kinds of edits: additions, and replacements of something that was added before.
//!
//! New entries go to the front of a map. New items go to the front of a list or before another item. The reason is that
//! it is known where each entry begins, but not what the comments at the end of a block belong to. Items after the last
//! one follow on the line after its last line. The result is parsed again and must mean what was intended.

use super::shared;
use super::written::entry_lines;
use super::yaml::{self, Mistake, Node, NodeKind, Stretch};

/// A step of a path within a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PathStep {
    Key(&'static str),
    Item(usize),
}

/// What is added to a map or a list.
enum Addition {
    Entries(Vec<(String, Node)>),
    /// Inserted before the item with this index, or after the last one.
    Items(usize, Vec<Node>),
    /// Replaces what is there.
    Instead(Node),
}

/// Collects the edits of one document.
pub(super) struct Editor<'a> {
    text: &'a str,
    root: &'a Node,
    additions: Vec<(Vec<PathStep>, Addition)>,
}

/// A replacement of some bytes of the text.
#[derive(Debug)]
pub(super) struct Edit {
    at: usize,
    remove: usize,
    text: String,
}

/// Applies the edits to the text. If two of them overlapped, [`says`] would detect it.
pub(super) fn apply(text: &str, mut edits: Vec<Edit>) -> String {
    edits.sort_by_key(|edit| edit.at);
    let mut result = String::new();
    let mut done = 0;
    for edit in edits {
        result += text.get(done..edit.at).unwrap_or_default();
        result += &edit.text;
        done = edit.at + edit.remove;
    }
    result + &text[done..]
}

impl<'a> Editor<'a> {
    pub(super) fn new(text: &'a str, root: &'a Node) -> Self {
        Self { text, root, additions: Vec::new() }
    }

    /// Adds entries to the map at `path` and then `key`. The map is created if it is not there.
    pub(super) fn entries(&mut self, path: &[PathStep], key: &'static str, entries: Vec<(String, Node)>) {
        match self.there(path, key) {
            Some(path) => self.add(path, Addition::Entries(entries)),
            None => self.set(path, key, Node::map(entries)),
        }
    }

    /// Adds items at the front of the list at `path` and then `key`. The list is created if it is not there.
    pub(super) fn items(&mut self, path: &[PathStep], key: &'static str, items: Vec<Node>) {
        self.items_before(path, key, 0, items);
    }

    /// The same, before the item with this index, or after the last one.
    pub(super) fn items_before(&mut self, path: &[PathStep], key: &'static str, at: usize, items: Vec<Node>) {
        match self.there(path, key) {
            Some(path) => self.add(path, Addition::Items(at, items)),
            None => self.set(path, key, Node::list(items)),
        }
    }

    /// Adds an entry to the map at `path`.
    pub(super) fn set(&mut self, path: &[PathStep], key: &str, value: Node) {
        self.add(path.to_vec(), Addition::Entries(vec![(key.to_owned(), value)]));
    }

    /// Replaces the node at `path`.
    pub(super) fn replace(&mut self, path: Vec<PathStep>, value: Node) {
        self.add(path, Addition::Instead(value));
    }

    fn there(&self, path: &[PathStep], key: &'static str) -> Option<Vec<PathStep>> {
        let path = [path, &[PathStep::Key(key)]].concat();
        find(self.root, &path).is_some().then_some(path)
    }

    /// Records an addition. Additions to the same place are merged.
    fn add(&mut self, path: Vec<PathStep>, addition: Addition) {
        let same = self.additions.iter_mut().find(|(known, _)| *known == path);
        match (same, addition) {
            (Some((_, Addition::Entries(known))), Addition::Entries(new)) => known.extend(new),
            (_, addition) => self.additions.push((path, addition)),
        }
    }

    /// The edits of the text, and the document as it is with them.
    pub(super) fn finish(self) -> Result<(Vec<Edit>, Node), Mistake> {
        let mut meant = self.root.clone();
        let mut edits = Vec::new();
        let aliases = shared::aliases(self.root);
        for (path, addition) in &self.additions {
            let Some(node) = shared::unshared(self.root, path, &aliases)? else { continue };
            edits.push(self.edit(node, addition)?);
            if let Some(node) = find_mut(&mut meant, path) {
                put(node, addition);
            }
        }
        Ok((edits, meant))
    }

    fn edit(&self, node: &Node, addition: &Addition) -> Result<Edit, Mistake> {
        let unusual = |problem: &str| Err(Mistake { line: node.place.line, problem: problem.to_owned() });
        if let Addition::Instead(value) = addition {
            return Ok(self.instead(node, value));
        }
        if node.is_null() {
            let inside = addition.in_line();
            let inside =
                if matches!(addition, Addition::Items(..)) { format!("[{inside}]") } else { format!("{{{inside}}}") };
            let place = node.place;
            return match place.end - place.start {
                // The value is empty, so the text goes behind the colon of its key.
                0 => Ok(Edit { at: self.behind_colon(place.start), remove: 0, text: format!(" {inside}") }),
                length => Ok(Edit { at: place.start, remove: length, text: inside }),
            };
        }
        match (&node.kind, addition) {
            (NodeKind::Map(entries), Addition::Entries(_)) if self.is_in_line(node) => {
                Ok(in_line(node.place.start + 1, addition, entries.is_empty()))
            }
            (NodeKind::List(items), Addition::Items(at, _)) if self.is_in_line(node) => {
                Ok(match at.checked_sub(1).and_then(|before| items.get(before)) {
                    Some(before) => {
                        Edit { at: before.place.end, remove: 0, text: ", ".to_owned() + &addition.in_line() }
                    }
                    None => in_line(node.place.start + 1, addition, items.is_empty()),
                })
            }
            (NodeKind::Map(entries), Addition::Entries(new)) if !entries.is_empty() => {
                let lines = new.iter().flat_map(|(key, value)| entry_lines(&key_text(key), value)).collect();
                Ok(self.in_map(&entries[0], lines))
            }
            (NodeKind::List(items), Addition::Items(at, new)) if !items.is_empty() => {
                self.in_list(items, *at, new.iter().flat_map(Node::item_lines).collect())
            }
            _ => unusual("there is neither a map nor a list where one must be"),
        }
    }

    /// Replaces a node: by lines if it is a block, and by text on the same line if it is a scalar or in brackets.
    /// Whatever follows it on its last line stays.
    fn instead(&self, node: &Node, value: &Node) -> Edit {
        let Stretch { start, column, .. } = node.place;
        let end = start + self.text[start..self.end(node)].trim_end().len();
        let in_line = matches!(node.kind, NodeKind::Scalar { .. }) || self.is_in_line(node);
        let lines = if in_line { vec![value.in_line()] } else { value.lines() };
        let next_line = format!("{}{}", self.line_end(), " ".repeat(column));
        Edit { at: start, remove: end - start, text: lines.join(&next_line) }
    }

    /// The position behind the colon of the key that ends at `at`.
    fn behind_colon(&self, at: usize) -> usize {
        self.text[at..].find(':').map_or(at, |colon| at + colon + 1)
    }

    fn is_in_line(&self, node: &Node) -> bool {
        let first = match &node.kind {
            NodeKind::List(items) => items.first(),
            NodeKind::Map(entries) => entries.first().map(|(key, _)| key),
            _ => None,
        };
        // Its own bracket comes before its first item. If both begin at the same place, the bracket belongs to the
        // first item of a block.
        let is_inside = first.is_none_or(|first| first.place.start > node.place.start);
        is_inside && self.text[node.place.start..].starts_with(['{', '['])
    }

    /// Adds lines to a map: after its first entry if that is one short line, else before that entry.
    fn in_map(&self, (key, value): &(Node, Node), lines: Vec<String>) -> Edit {
        let line_end = self.text[key.place.start..].find('\n').map(|length| key.place.start + length + 1);
        let one_line = matches!(value.kind, NodeKind::Scalar { .. })
            && !self.text[value.place.start..].starts_with(['|', '>', '&', '!']);
        match line_end {
            Some(at) if one_line && value.place.end < at && !value.is_null() => self.block(at, key.place.column, lines),
            _ => self.before(key.place.start, key.place.column, lines),
        }
    }

    fn in_list(&self, items: &[Node], at: usize, lines: Vec<String>) -> Result<Edit, Mistake> {
        let item = &items[at.min(items.len() - 1)];
        let line_start = self.text[..item.place.start].rfind('\n').map_or(0, |end| end + 1);
        let dash = self.text[line_start..item.place.start].find(|c: char| c != ' ');
        match dash.filter(|at| self.text[line_start + at..].starts_with('-')) {
            Some(column) if at < items.len() => Ok(self.before(line_start + column, column, lines)),
            Some(column) => Ok(self.behind(self.end(item), column, lines)),
            None => {
                Err(Mistake { line: item.place.line, problem: "the item does not start after its dash".to_owned() })
            }
        }
    }

    /// The position where the last part of a node ends.
    fn end(&self, node: &Node) -> usize {
        let last = match &node.kind {
            _ if self.is_in_line(node) => None,
            NodeKind::List(items) => items.last(),
            NodeKind::Map(entries) => entries.last().map(|(_, value)| value),
            _ => None,
        };
        last.map_or(node.place.end, |last| self.end(last))
    }

    /// Adds lines below the line that contains the position `at`, where something ends.
    fn behind(&self, at: usize, column: usize, lines: Vec<String>) -> Edit {
        match self.text[at..].find('\n') {
            // A scalar of several lines ends after the last of them.
            _ if self.text[..at].ends_with('\n') => self.block(at, column, lines),
            Some(length) => self.block(at + length + 1, column, lines),
            None => {
                let mut edit = self.block(self.text.len(), column, lines);
                edit.text.insert_str(0, self.line_end());
                edit
            }
        }
    }

    /// Adds lines before what begins at `at` in `column`. If it begins its line, they go above its comments, and
    /// otherwise directly before it.
    fn before(&self, at: usize, column: usize, lines: Vec<String>) -> Edit {
        let mut line_start = self.text[..at].rfind('\n').map_or(0, |end| end + 1);
        if !self.text[line_start..at].chars().all(|c| c == ' ') {
            let end = self.line_end();
            let indent = " ".repeat(column);
            let text = lines.iter().map(|line| format!("{line}{end}{indent}")).collect();
            return Edit { at, remove: 0, text };
        }
        while let Some(above) = self.text[..line_start].strip_suffix('\n') {
            let start = above.rfind('\n').map_or(0, |end| end + 1);
            let line = &above[start..];
            if !line.trim_start().starts_with('#') || line.len() - line.trim_start().len() != column {
                break;
            }
            line_start = start;
        }
        self.block(line_start, column, lines)
    }

    fn block(&self, at: usize, column: usize, lines: Vec<String>) -> Edit {
        let (indent, end) = (" ".repeat(column), self.line_end());
        Edit { at, remove: 0, text: lines.iter().map(|line| format!("{indent}{line}{end}")).collect() }
    }

    fn line_end(&self) -> &'static str {
        if self.text.contains("\r\n") { "\r\n" } else { "\n" }
    }
}

/// Adds something behind the opening bracket of a map or list.
fn in_line(at: usize, addition: &Addition, empty: bool) -> Edit {
    let comma = if empty { "" } else { ", " };
    Edit { at, remove: 0, text: addition.in_line() + comma }
}

impl Addition {
    /// The addition as text between brackets.
    fn in_line(&self) -> String {
        let parts: Vec<String> = match self {
            Addition::Entries(entries) => entries
                .iter()
                .map(|(key, value)| format!("{}: {}", Node::string(key).in_line(), value.in_line()))
                .collect(),
            Addition::Items(_, items) => items.iter().map(Node::in_line).collect(),
            Addition::Instead(value) => vec![value.in_line()],
        };
        parts.join(", ")
    }
}

fn key_text(key: &str) -> String {
    Node::string(key).lines().concat()
}

fn find<'n>(root: &'n Node, path: &[PathStep]) -> Option<&'n Node> {
    path.iter().try_fold(root, |node, step| match step {
        PathStep::Key(key) => node.get(key),
        PathStep::Item(at) => node.items().get(*at),
    })
}

fn find_mut<'n>(root: &'n mut Node, path: &[PathStep]) -> Option<&'n mut Node> {
    path.iter().try_fold(root, |node, step| match (step, &mut node.kind) {
        (PathStep::Key(key), NodeKind::Map(entries)) => {
            entries.iter_mut().find(|(known, _)| known.text() == Some(*key)).map(|(_, value)| value)
        }
        (PathStep::Item(at), NodeKind::List(items)) => items.get_mut(*at),
        _ => None,
    })
}

/// Makes the same addition in the tree. Its place within the map or list does not matter.
fn put(node: &mut Node, addition: &Addition) {
    if let Addition::Instead(value) = addition {
        *node = value.clone();
        return;
    }
    if node.is_null() {
        node.kind = if matches!(addition, Addition::Items(..)) {
            NodeKind::List(Vec::new())
        } else {
            NodeKind::Map(Vec::new())
        };
    }
    match (&mut node.kind, addition) {
        (NodeKind::Map(known), Addition::Entries(new)) => {
            known.extend(new.iter().map(|(key, value)| (Node::string(key), value.clone())));
        }
        (NodeKind::List(known), Addition::Items(at, new)) => {
            let at = (*at).min(known.len());
            drop(known.splice(at..at, new.iter().cloned()));
        }
        _ => {}
    }
}

/// Whether a text means exactly these documents, in this order.
pub(super) fn says(text: &str, meant: &[Node]) -> bool {
    let sorted = |nodes: &[Node]| -> Vec<Node> { nodes.iter().map(Node::sorted).collect() };
    let Ok(read) = yaml::parse(text) else { return false };
    let (read, meant) = (sorted(&read), sorted(meant));
    read.len() == meant.len() && read.iter().zip(&meant).all(|(read, meant)| read.same(meant))
}

impl Node {
    /// The node with the entries of each map sorted by key, because their order has no meaning.
    pub(super) fn sorted(&self) -> Node {
        let kind = match &self.kind {
            NodeKind::List(items) => NodeKind::List(items.iter().map(Node::sorted).collect()),
            NodeKind::Map(entries) => {
                let mut entries: Vec<_> = entries.iter().map(|(key, value)| (key.clone(), value.sorted())).collect();
                entries.sort_by(|a, b| a.0.text().cmp(&b.0.text()));
                NodeKind::Map(entries)
            }
            other => other.clone(),
        };
        Node { kind, place: self.place, anchor: self.anchor }
    }
}
