//! The nodes that rules are made of, and which of these are regular.

use std::ops::RangeInclusive;

/// An index into [`Rules::nodes`].
pub(super) type Id = usize;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Node {
    /// One character of these ranges, ascending.
    Chars(Vec<RangeInclusive<char>>),
    Text(String),
    /// A token by its number or name, as Lark writes it.
    Token(String),
    /// A rule, by its index in [`Rules::rules`].
    Rule(usize),
    /// All of these, one after the other.
    All(Vec<Id>),
    /// One of these.
    Any(Vec<Id>),
    Repeat {
        of: Id,
        min: u32,
        max: Option<u32>,
    },
}

#[derive(Debug, Default)]
pub(super) struct Rules {
    pub(super) nodes: Vec<Node>,
    /// The body of each rule.
    pub(super) rules: Vec<Id>,
    pub(super) root: usize,
    /// For each node that is regular, its size as a regular expression. Filled once all rules are read.
    pub(super) sizes: Vec<Option<Size>>,
}

/// The size of a regular expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    /// The approximate number of characters.
    pub(super) length: usize,
    pub(super) depth: usize,
    /// Whether the empty text matches it.
    pub(super) is_nullable: bool,
}

/// Deeper expressions are not made terminals, because reading one recurses as deep.
const DEEPEST: usize = 20;
/// A rule whose calls of itself have more alternatives is not unrolled.
const MAX_TAILS: usize = 256;

impl Rules {
    pub(super) fn add(&mut self, node: Node) -> Id {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// Finds the regular nodes: those that do not contain themselves, through whatever rules.
    pub(super) fn measure(&mut self) {
        let mut sizes = Sizes { rules: self, known: vec![None; self.nodes.len()] };
        for node in 0..self.nodes.len() {
            sizes.of(node);
        }
        self.sizes = sizes.known.into_iter().map(|size| size.flatten()).collect();
    }

    /// Rewrites rules that call themselves only at the end as repetitions: `ws ::= ([ \t] ws)?` becomes `[ \t]*`.
    pub(super) fn unroll(&mut self) {
        for rule in 0..self.rules.len() {
            let (mut again, mut last) = (vec![], vec![]);
            let body = self.rules[rule];
            if self.calls(body, rule) && self.tails(body, rule, &mut again, &mut last) && !last.is_empty() {
                let of = self.add(Node::Any(again));
                let repeated = self.add(Node::Repeat { of, min: 0, max: None });
                let last = self.add(Node::Any(last));
                self.rules[rule] = self.add(Node::All(vec![repeated, last]));
            }
        }
    }

    /// Whether a node contains a call of a rule. Other rules are not followed.
    fn calls(&self, node: Id, rule: usize) -> bool {
        match &self.nodes[node] {
            Node::Rule(called) => *called == rule,
            Node::All(parts) | Node::Any(parts) => parts.iter().any(|part| self.calls(*part, rule)),
            Node::Repeat { of, .. } => self.calls(*of, rule),
            Node::Chars(_) | Node::Text(_) | Node::Token(_) => false,
        }
    }

    /// Collects what comes before calls of the rule at the end of a node, and the alternatives without such a call.
    /// Returns whether there are no other calls.
    fn tails(&mut self, node: Id, rule: usize, again: &mut Vec<Id>, last: &mut Vec<Id>) -> bool {
        if !self.calls(node, rule) {
            last.push(node);
            return true;
        }
        match self.nodes[node].clone() {
            Node::Rule(_) => {
                again.push(self.add(Node::Text(String::new())));
                true
            }
            Node::Any(parts) => parts.into_iter().all(|part| self.tails(part, rule, again, last)),
            Node::Repeat { of, min: 0, max: Some(1) } => {
                last.push(self.add(Node::Text(String::new())));
                self.tails(of, rule, again, last)
            }
            Node::All(parts) => {
                let Some((end, before)) = parts.split_last() else { return false };
                let (mut own_again, mut own_last) = (vec![], vec![]);
                let is_tail = before.iter().all(|part| !self.calls(*part, rule))
                    && self.tails(*end, rule, &mut own_again, &mut own_last);
                let is_small = own_again.len() + own_last.len() <= MAX_TAILS;
                for (ends, of) in [(own_again, again), (own_last, last)] {
                    of.extend(
                        ends.into_iter().take(MAX_TAILS).map(|end| self.add(Node::All([before, &[end]].concat()))),
                    );
                }
                is_tail && is_small
            }
            Node::Repeat { .. } | Node::Chars(_) | Node::Text(_) | Node::Token(_) => false,
        }
    }
}

/// Computes the sizes of nodes.
struct Sizes<'r> {
    rules: &'r Rules,
    /// By node; the outer `None` means not computed yet. While a node is being computed it counts as not regular, since
    /// it leads back to itself.
    known: Vec<Option<Option<Size>>>,
}

impl Sizes<'_> {
    fn of(&mut self, node: Id) -> Option<Size> {
        if let Some(known) = self.known[node] {
            return known;
        }
        self.known[node] = Some(None);
        let size = self.found(node).filter(|size| size.depth <= DEEPEST);
        self.known[node] = Some(size);
        size
    }

    fn found(&mut self, node: Id) -> Option<Size> {
        let rules = self.rules;
        match &rules.nodes[node] {
            Node::Chars(ranges) => Some(Size { length: 14 * ranges.len(), depth: 1, is_nullable: false }),
            Node::Text(text) => Some(Size { length: 6 * text.len(), depth: 1, is_nullable: text.is_empty() }),
            Node::Token(_) => None,
            Node::Rule(rule) => self.of(rules.rules[*rule]),
            Node::All(parts) => {
                let all = Size { length: 4, depth: 0, is_nullable: true };
                self.sum(parts, all, |all, part| all.is_nullable && part.is_nullable)
            }
            Node::Any(parts) => {
                let none = Size { length: 4, depth: 0, is_nullable: false };
                self.sum(parts, none, |all, part| all.is_nullable || part.is_nullable)
            }
            Node::Repeat { of, min, .. } => {
                let Size { length, depth, is_nullable } = self.of(*of)?;
                let is_nullable = is_nullable || *min == 0;
                Some(Size { length: length.saturating_add(12), depth: depth + 1, is_nullable })
            }
        }
    }

    fn sum(&mut self, parts: &[Id], none: Size, is_nullable: impl Fn(Size, Size) -> bool) -> Option<Size> {
        let mut all = none;
        for part in parts {
            let part = self.of(*part)?;
            all = Size {
                length: all.length.saturating_add(part.length),
                depth: all.depth.max(part.depth + 1),
                is_nullable: is_nullable(all, part),
            };
        }
        Some(all)
    }
}
