//! YAML that appears in several places of a document: aliases of an anchor, and merge keys.
//!
//! An alias is read as the node that it stands for. Nothing may be added to that node, because it would change in every
//! place. The entries of a merge key are not even read, because programs disagree on whether they or the keys beside
//! them take precedence.

use super::edit::PathStep;
use super::yaml::{Mistake, Node, NodeKind};
use std::collections::BTreeMap;

/// The key that merges the entries of other maps.
const MERGE: &str = "<<";

/// The anchors that have aliases, each with the line of its first alias.
pub(super) fn aliases(root: &Node) -> BTreeMap<usize, usize> {
    fn collect(node: &Node, found: &mut BTreeMap<usize, usize>) {
        match &node.kind {
            NodeKind::Scalar { .. } => {}
            NodeKind::List(items) => items.iter().for_each(|item| collect(item, found)),
            NodeKind::Map(entries) => entries.iter().for_each(|(key, value)| {
                collect(key, found);
                collect(value, found);
            }),
            NodeKind::Alias(anchor, _) => _ = found.entry(*anchor).or_insert(node.place.line),
        }
    }
    let mut found = BTreeMap::new();
    collect(root, &mut found);
    found
}

/// The node at a path. It must not appear in any other place, so that something can be added to it.
pub(super) fn unshared<'n>(
    root: &'n Node,
    path: &[PathStep],
    aliases: &BTreeMap<usize, usize>,
) -> Result<Option<&'n Node>, Mistake> {
    let (mut node, mut line) = (root, root.place.line);
    check_unshared(node, line, aliases)?;
    for step in path {
        let next = match step {
            PathStep::Key(key) => node.entry(key).map(|(key, value)| (value, key.place.line)),
            PathStep::Item(at) => node.items().get(*at).map(|item| (item, item.place.line)),
        };
        let Some(next) = next else { return Ok(None) };
        (node, line) = next;
        check_unshared(node, line, aliases)?;
    }
    Ok(Some(node))
}

fn check_unshared(node: &Node, line: usize, aliases: &BTreeMap<usize, usize>) -> Result<(), Mistake> {
    if matches!(node.kind, NodeKind::Alias(..)) {
        let problem = "something must be added here, but this is an alias; write it out".to_owned();
        return Err(Mistake { line, problem });
    }
    match node.anchor.and_then(|anchor| aliases.get(&anchor)) {
        Some(alias) => {
            let problem = format!(
                "something must be added here, and the alias in line {alias} would repeat it; write that alias out"
            );
            Err(Mistake { line, problem })
        }
        None => Ok(()),
    }
}

/// Checks that the maps on a path, and the node at its end if that is a map, have no merge keys. In a list on the path,
/// every item is checked.
pub(super) fn check_merged(node: &Node, path: &[&str]) -> Result<(), Mistake> {
    if let Some((key, _)) = node.entry(MERGE) {
        let problem = format!("a merge key ({MERGE}) hides what is there; write it out");
        return Err(Mistake { line: key.place.line, problem });
    }
    let Some((key, rest)) = path.split_first() else { return Ok(()) };
    let Some(value) = node.get(key) else { return Ok(()) };
    match value.items() {
        [] => check_merged(value, rest),
        items => items.iter().try_for_each(|item| check_merged(item, rest)),
    }
}
