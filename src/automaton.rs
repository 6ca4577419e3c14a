//! Many sequences of tokens as one automaton (Aho and Corasick, "Efficient string matching", 1975). Checking whether
//! one of them ends at a token costs a step or two, however many and however long they are. DRY's sequence breakers are
//! found by an automaton, as are bad words, sequence biases ([`patterns`](crate::sequence)), and the sequences after
//! which a grammar begins.
//!
//! The automaton consists of the nodes of a trie, breadth first, so that the children of a node stand side by side, in
//! the order of their tokens. A node stands for the tokens on the way to it. Its *fail* is the node of the longest
//! proper end of these tokens that begins a sequence too. The automaton is always at the node of the longest end of the
//! text that begins a sequence. A token takes it one level down or, by fails, up: over a text it goes up no more often
//! than down.
//!
//! Each node takes 12 bytes. There is at most one node more than the sequences have tokens.

use crate::sampling::steps::step;

/// The node of the empty sequence.
const ROOT: u32 = 0;
/// A bit in [`Automaton::fails`]: a sequence ends at this node.
const ENDS: u32 = 1 << 31;

/// The place of an automaton in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Node(u32);

impl Node {
    /// The number of the node.
    pub fn node(self) -> usize {
        self.0 as usize
    }
}

/// An automaton over sequences such as DRY's sequence breakers.
#[derive(Debug, PartialEq, Eq)]
pub struct Automaton {
    /// For each node, the token that leads to it.
    tokens: Vec<u32>,
    /// For each node, its first child; then one more entry, the end of the last node's children.
    children: Vec<u32>,
    /// For each node, its fail, and whether a sequence [ends](ENDS) there.
    fails: Vec<u32>,
    longest: usize,
}

impl Automaton {
    /// An automaton over these sequences, in any order. None of them may be empty.
    pub fn new(breakers: &[impl AsRef<[u32]>]) -> Self {
        let mut sorted: Vec<&[u32]> = breakers.iter().map(AsRef::as_ref).collect();
        sorted.sort_unstable();
        let longest = sorted.iter().map(|breaker| breaker.len()).max().unwrap_or(0);
        let mut built = Self { tokens: vec![0], children: Vec::new(), fails: vec![ROOT], longest };
        // For each node, the range of sequences that begin with its tokens, which are side by side, and the number of
        // these tokens.
        let mut begun = vec![(0..sorted.len(), 0)];
        let mut node = 0;
        while let Some((mut among, depth)) = begun.get(node).cloned() {
            built.children.push(begun.len() as u32);
            while !among.is_empty() {
                let first = sorted[among.start];
                let Some(&token) = first.get(depth) else {
                    among.start += 1;
                    continue;
                };
                let same = among.start + sorted[among.clone()].partition_point(|other| other[depth] == token);
                built.tokens.push(token);
                built.fails.push(if first.len() == depth + 1 { ENDS } else { ROOT });
                begun.push((among.start..same, depth + 1));
                among.start = same;
            }
            node += 1;
        }
        built.children.push(begun.len() as u32);
        built.find_fails();
        [&mut built.tokens, &mut built.children, &mut built.fails].into_iter().for_each(Vec::shrink_to_fit);
        built
    }

    /// Computes the fails. Nodes of fewer tokens come first, because the fail of a child follows from its parent's.
    fn find_fails(&mut self) {
        for node in 0..self.tokens.len() {
            for child in self.children[node]..self.children[node + 1] {
                let above = if node as u32 == ROOT {
                    Node(ROOT)
                } else {
                    self.next(Node(self.fail(node as u32)), self.tokens[child as usize])
                };
                // If a sequence ends at a node's fail, it ends at the node too.
                self.fails[child as usize] |= above.0 | (self.fails[above.0 as usize] & ENDS);
            }
        }
    }

    fn fail(&self, node: u32) -> u32 {
        self.fails[node as usize] & !ENDS
    }

    fn child(&self, node: u32, token: u32) -> Option<u32> {
        let (from, to) = (self.children[node as usize], self.children[node as usize + 1]);
        let among = &self.tokens[from as usize..to as usize];
        among.binary_search(&token).ok().map(|at| from + at as u32)
    }

    /// The place after one more token.
    pub fn next(&self, mut place: Node, token: u32) -> Node {
        loop {
            step();
            match self.child(place.0, token) {
                Some(child) => return Node(child),
                None if place.0 == ROOT => return place,
                None => place = Node(self.fail(place.0)),
            }
        }
    }

    /// Whether a sequence ends here.
    pub fn ends(&self, place: Node) -> bool {
        self.fails[place.0 as usize] & ENDS != 0
    }

    /// Whether this token alone is a sequence.
    pub fn is_one(&self, token: u32) -> bool {
        self.child(ROOT, token).is_some_and(|node| self.ends(Node(node)))
    }

    /// How many nodes there are. Nodes of fewer tokens come first.
    pub fn nodes(&self) -> usize {
        self.tokens.len()
    }

    /// The node of the longest proper end of a node's tokens that begins a sequence too.
    pub fn shorter(&self, node: usize) -> usize {
        self.fail(node as u32) as usize
    }

    /// The number of tokens of the longest sequence.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// How many bytes the automaton takes.
    pub fn bytes(&self) -> usize {
        let numbers = self.tokens.capacity() + self.children.capacity() + self.fails.capacity();
        size_of::<Self>() + numbers * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::steps::steps;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ends_are_those_of_the_definition(
            breakers in prop::collection::vec(prop::collection::vec(0u32..3, 1..6), 0..8),
            text in prop::collection::vec(0u32..4, 0..40),
        ) {
            let automaton = Automaton::new(&breakers);
            let mut place = Node::default();
            prop_assert!(!automaton.ends(place));
            for at in 0..text.len() {
                place = automaton.next(place, text[at]);
                let expected = breakers.iter().any(|breaker| text[..=at].ends_with(breaker));
                prop_assert_eq!(automaton.ends(place), expected, "{} of {:?}", at, text);
                prop_assert_eq!(automaton.is_one(text[at]), breakers.contains(&vec![text[at]]));
            }
            prop_assert_eq!(automaton.longest(), breakers.iter().map(Vec::len).max().unwrap_or(0));
            let tokens: usize = breakers.iter().map(Vec::len).sum();
            prop_assert!(automaton.bytes() <= size_of::<Automaton>() + 12 * (tokens + 2));
        }
    }

    /// As many and as long sequences as allowed, made so that each one without its first token matches everywhere.
    #[test]
    fn a_text_costs_two_steps_a_token_whatever_the_breakers() {
        let (one, chain) = (vec![[vec![9], vec![1; 63]].concat(); 1024], (1..=64).map(|len| vec![1; len]).collect());
        let (odd, mixed): (Vec<_>, Vec<_>) = (
            (0..1024).map(|i| [vec![1; 62], vec![2, 10 + i]].concat()).collect(),
            (0..1024).map(|i| [vec![10 + i], vec![1; 63]].concat()).collect(),
        );
        let texts = [vec![1; 4096], (0..4096).map(|i| 1 + u32::from(i % 63 == 62)).collect(), vec![9; 4096]];
        for breakers in [one, chain, odd, mixed] {
            let automaton = Automaton::new(&breakers);
            for text in &texts {
                let walk = |len: usize| {
                    steps(|| _ = text[..len].iter().fold(Node::default(), |at, &token| automaton.next(at, token)))
                };
                assert!(walk(2048) <= 2 * 2048 && walk(4096) <= 2 * 4096, "{} {}", walk(2048), walk(4096));
            }
        }
    }
}
