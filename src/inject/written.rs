//! Writes nodes as YAML text.

use super::yaml::{Node, NodeKind};

impl Node {
    /// The node on one line, as JSON, which is also YAML.
    pub(super) fn in_line(&self) -> String {
        let joined = |parts: Vec<String>| parts.join(", ");
        match &self.kind {
            NodeKind::Scalar { text, .. } if !self.is_string() => text.clone(),
            NodeKind::Scalar { text, .. } => quoted(text),
            NodeKind::List(items) => format!("[{}]", joined(items.iter().map(Node::in_line).collect())),
            NodeKind::Map(entries) => {
                let entry = |(key, value): &(Node, Node)| format!("{}: {}", key.in_line(), value.in_line());
                format!("{{{}}}", joined(entries.iter().map(entry).collect()))
            }
            NodeKind::Alias(..) => unreachable!("none is made, and those that are read are not written"),
        }
    }

    /// The node as lines: a map or a list without indentation, or a scalar as one line.
    pub(super) fn lines(&self) -> Vec<String> {
        match &self.kind {
            NodeKind::List(items) if !items.is_empty() => items.iter().flat_map(Node::item_lines).collect(),
            NodeKind::Map(entries) if !entries.is_empty() => {
                entries.iter().flat_map(|(key, value)| entry_lines(&key.scalar(), value)).collect()
            }
            NodeKind::Scalar { .. } => vec![self.scalar()],
            _ => vec![self.in_line()],
        }
    }

    /// The node as lines of a list item.
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

/// A key and its value as lines of a map entry.
pub(super) fn entry_lines(key: &str, value: &Node) -> Vec<String> {
    let lines = value.lines();
    let nested = match &value.kind {
        NodeKind::List(items) => !items.is_empty(),
        NodeKind::Map(entries) => !entries.is_empty(),
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
