//! Reads GBNF in the plain way, as llama.cpp does: it keeps all places in the rules where a text may be, each as a
//! stack of what has still to follow.
//!
//! The automata are tested against it. Rules that call themselves first never end here; llama.cpp refuses them.

use super::read;
use super::rules::{Id, Node, Rules};
use std::collections::BTreeSet;

/// The most places that are looked at for one more byte. A few grammars have endlessly many, such as repetitions of
/// repetitions of what may be empty.
const MAX_STACKS: usize = 20_000;

/// One entry of a stack: something that has still to follow.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Frame {
    Node(Id),
    Repeat(Id, u32, Option<u32>),
    Byte(u8),
    /// A character of a class, of which these bytes were read already.
    Within(Id, Vec<u8>),
}

/// A text, with all places in a grammar where it may be.
#[derive(Clone)]
pub(in crate::grammar) struct Stacks<'r> {
    rules: &'r Rules,
    stacks: BTreeSet<Vec<Frame>>,
    /// Whether there were too many places to follow.
    is_lost: bool,
}

/// The rules of a valid grammar.
pub(in crate::grammar) struct Plain(Rules);

impl Plain {
    pub(in crate::grammar) fn new(text: &str) -> Self {
        Self(read::read(text).expect("it is right"))
    }

    pub(in crate::grammar) fn begun(&self) -> Stacks<'_> {
        let mut begun = Stacks { rules: &self.0, stacks: BTreeSet::new(), is_lost: false };
        begun.expand(vec![Frame::Node(self.0.rules[self.0.root])], &mut BTreeSet::new());
        begun
    }
}

impl Stacks<'_> {
    /// Whether it lost track, so that nothing it says counts.
    pub(in crate::grammar) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Whether the text may end.
    pub(in crate::grammar) fn is_whole(&self) -> bool {
        self.stacks.contains(&vec![])
    }

    /// The text with some more bytes; `None` if they may not follow.
    pub(in crate::grammar) fn with(&self, bytes: &[u8]) -> Option<Self> {
        bytes.iter().try_fold(self.clone(), |text, byte| text.read(*byte))
    }

    fn read(&self, byte: u8) -> Option<Self> {
        let mut next = Self { stacks: BTreeSet::new(), ..*self };
        let mut seen = BTreeSet::new();
        for stack in &self.stacks {
            let Some((top, below)) = stack.split_last() else { continue };
            let (class, before) = match top {
                Frame::Byte(wanted) if *wanted == byte => {
                    next.expand(below.to_vec(), &mut seen);
                    continue;
                }
                Frame::Node(class) => (*class, &vec![]),
                Frame::Within(class, before) => (*class, before),
                _ => continue,
            };
            let so_far = [before.as_slice(), &[byte]].concat();
            let Node::Chars(ranges) = &self.rules.nodes[class] else { unreachable!("expanded") };
            match could_be(&so_far) {
                Some((low, high))
                    if ranges.iter().any(|r| u32::from(*r.start()) <= high && low <= u32::from(*r.end())) =>
                {
                    if std::str::from_utf8(&so_far).is_ok() {
                        next.expand(below.to_vec(), &mut seen);
                    } else {
                        next.stacks.insert([below, &[Frame::Within(class, so_far)]].concat());
                    }
                }
                _ => {}
            }
        }
        (next.is_lost || !next.stacks.is_empty()).then_some(next)
    }

    /// Adds a stack once its top is a character, or it is empty.
    fn expand(&mut self, mut stack: Vec<Frame>, seen: &mut BTreeSet<Vec<Frame>>) {
        self.is_lost |= seen.len() >= MAX_STACKS;
        if self.is_lost || !seen.insert(stack.clone()) {
            return;
        }
        let whole = stack.clone();
        match stack.pop() {
            None | Some(Frame::Byte(_) | Frame::Within(..)) => {
                self.stacks.insert(whole);
            }
            Some(Frame::Repeat(of, min, max)) => {
                if min == 0 {
                    self.expand(stack.clone(), seen);
                }
                if max != Some(0) {
                    stack.push(Frame::Repeat(of, min.saturating_sub(1), max.map(|max| max - 1)));
                    stack.push(Frame::Node(of));
                    self.expand(stack, seen);
                }
            }
            Some(Frame::Node(node)) => self.expand_node(node, stack, seen),
        }
    }

    /// The same, with a node on top of the stack.
    fn expand_node(&mut self, node: Id, mut stack: Vec<Frame>, seen: &mut BTreeSet<Vec<Frame>>) {
        match &self.rules.nodes[node] {
            Node::Chars(_) => {
                stack.push(Frame::Node(node));
                self.stacks.insert(stack);
            }
            Node::Token(_) => {}
            Node::Text(text) => {
                stack.extend(text.bytes().rev().map(Frame::Byte));
                self.expand(stack, seen);
            }
            Node::Rule(rule) => {
                stack.push(Frame::Node(self.rules.rules[*rule]));
                self.expand(stack, seen);
            }
            Node::All(parts) => {
                stack.extend(parts.iter().rev().map(|part| Frame::Node(*part)));
                self.expand(stack, seen);
            }
            Node::Any(parts) => {
                for part in parts {
                    self.expand([stack.as_slice(), &[Frame::Node(*part)]].concat(), seen);
                }
            }
            Node::Repeat { of, min, max } => {
                stack.push(Frame::Repeat(*of, *min, *max));
                self.expand(stack, seen);
            }
        }
    }
}

/// The lowest and the highest character whose bytes may begin with these; `None` if there is none.
fn could_be(bytes: &[u8]) -> Option<(u32, u32)> {
    let first = u32::from(bytes[0]);
    let (length, bits, least) = match first {
        0..=0x7F => return (bytes.len() == 1).then_some((first, first)),
        0xC0..=0xDF => (2, first & 0x1F, 0x80),
        0xE0..=0xEF => (3, first & 0x0F, 0x800),
        0xF0..=0xF7 => (4, first & 0x07, 0x1_0000),
        _ => return None,
    };
    if bytes.len() > length || bytes[1..].iter().any(|byte| byte & 0xC0 != 0x80) {
        return None;
    }
    let known = bytes[1..].iter().fold(bits, |code, byte| code << 6 | u32::from(byte & 0x3F));
    let left = 6 * (length - bytes.len()) as u32;
    let (low, high) = ((known << left).max(least), (known << left | ((1 << left) - 1)).min(0x10_FFFF));
    let is_half = (0xD800..=0xDFFF).contains(&low) && (0xD800..=0xDFFF).contains(&high);
    (low <= high && !is_half).then_some((low, high))
}
