//! Which parts of the rules are terminals, and what may follow each.

use super::bytes::Bytes;
use super::rules::{Id, Node, Rules};
use super::write::{self, Written, text_of};
use std::collections::{BTreeMap, HashMap, HashSet};

/// The part of the rules that a terminal comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Place {
    Node(Id),
    /// Some consecutive parts of a [`Node::All`].
    Run(Id),
}

/// Nodes that are not made terminals, though they could be.
#[derive(Debug, Default)]
pub(super) struct Opened {
    nodes: HashSet<Id>,
    /// Nodes of [`Node::All`] whose parts are not joined into terminals.
    loose: HashSet<Id>,
}

impl Opened {
    /// Opens the places that a terminal comes from. It must not be a single character.
    pub(super) fn open(&mut self, rules: &Rules, places: &HashSet<Place>) {
        for place in places {
            match place {
                Place::Node(node) => {
                    self.nodes.insert(*node);
                    if matches!(rules.nodes[*node], Node::All(_)) {
                        self.loose.insert(*node);
                    }
                }
                Place::Run(node) => {
                    self.loose.insert(*node);
                }
            }
        }
    }
}

/// A part of a rule, as the parser reads it.
#[derive(Debug)]
pub(super) enum Part {
    /// By its index in [`Plan::terminals`].
    Terminal(usize),
    Token(String),
    /// By its number in [`Rules::rules`].
    Rule(usize),
    All(Vec<Part>),
    Any(Vec<Part>),
    Repeat {
        of: Box<Part>,
        min: u32,
        max: Option<u32>,
    },
}

#[derive(Debug)]
pub(super) struct Terminal {
    /// It never matches the empty text.
    pub(super) regex: String,
    pub(super) from: HashSet<Place>,
    /// Whether it is a single character, which never runs on over what follows.
    pub(super) is_character: bool,
}

#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) terminals: Vec<Terminal>,
    /// The rules that the root leads to, by number.
    pub(super) rules: BTreeMap<usize, Part>,
    pub(super) root: usize,
}

impl Plan {
    /// Makes terminals as large as possible, except for opened places.
    pub(super) fn of(rules: &Rules, longest: usize, opened: &Opened) -> Self {
        let mut planner =
            Planner { rules, longest, opened, plan: Self::default(), known: HashMap::new(), left: vec![rules.root] };
        while let Some(rule) = planner.left.pop() {
            if !planner.plan.rules.contains_key(&rule) {
                let part = planner.part(rules.rules[rule]);
                planner.plan.rules.insert(rule, part);
            }
        }
        Self { root: rules.root, ..planner.plan }
    }
}

struct Planner<'r> {
    rules: &'r Rules,
    longest: usize,
    opened: &'r Opened,
    plan: Plan,
    /// Terminals by their text.
    known: HashMap<String, usize>,
    /// Rules that have yet to be looked at.
    left: Vec<usize>,
}

impl Planner<'_> {
    fn part(&mut self, node: Id) -> Part {
        if self.is_closed(node)
            && let Some(part) = self.terminal(&[node], Place::Node(node))
        {
            return part;
        }
        match &self.rules.nodes[node] {
            Node::Chars(_) => unreachable!("one character is always closed"),
            Node::Token(name) => Part::Token(name.clone()),
            Node::Text(text) => Part::All(text.chars().map(|c| self.character(c)).collect()),
            Node::Rule(rule) => {
                self.left.push(*rule);
                Part::Rule(*rule)
            }
            Node::Any(parts) => Part::Any(parts.iter().map(|part| self.part(*part)).collect()),
            Node::All(parts) if self.opened.loose.contains(&node) => {
                Part::All(parts.iter().map(|part| self.part(*part)).collect())
            }
            Node::All(parts) => self.runs(node, parts),
            Node::Repeat { max: Some(0), .. } => Part::All(vec![]),
            Node::Repeat { of, min, max } => Part::Repeat { of: Box::new(self.part(*of)), min: *min, max: *max },
        }
    }

    /// Whether a node may be part of a terminal.
    fn is_closed(&self, node: Id) -> bool {
        let size = self.rules.sizes[node].map(|size| size.length);
        let is_one = matches!(self.rules.nodes[node], Node::Chars(_));
        is_one || !self.opened.nodes.contains(&node) && size.is_some_and(|length| length <= self.longest)
    }

    /// A sequence of parts. As many consecutive ones as possible are joined into one terminal.
    fn runs(&mut self, node: Id, parts: &[Id]) -> Part {
        let mut all = vec![];
        let mut rest = parts;
        while let Some(first) = rest.first() {
            let mut length = 0;
            let fits = rest.iter().take_while(|part| {
                length = self.rules.sizes[**part].map_or(length, |size| size.length.saturating_add(length));
                self.is_closed(**part) && length <= self.longest
            });
            let fits = fits.count();
            let run =
                (fits > 1).then(|| self.terminal(&rest[..fits], Place::Run(node))).flatten().map(|part| (part, fits));
            let (part, count) = run.unwrap_or_else(|| (self.part(*first), 1));
            all.push(part);
            rest = &rest[count..];
        }
        Part::All(all)
    }

    /// Some consecutive nodes as a terminal, unless they are too long for one.
    fn terminal(&mut self, nodes: &[Id], from: Place) -> Option<Part> {
        let is_character = matches!(nodes, [one] if matches!(self.rules.nodes[*one], Node::Chars(_)));
        let most = if is_character { usize::MAX } else { 4 * self.longest };
        let Written { regex, is_nullable } = write::regex(self.rules, nodes, most)?;
        Some(match regex {
            None => Part::All(vec![]),
            Some(regex) => {
                let terminal = Part::Terminal(self.named(regex, from, is_character));
                if is_nullable { Part::Repeat { of: Box::new(terminal), min: 0, max: Some(1) } } else { terminal }
            }
        })
    }

    fn character(&mut self, character: char) -> Part {
        // A character is never opened, so it does not matter where it comes from.
        Part::Terminal(self.named(text_of(&character.to_string()), Place::Node(0), true))
    }

    fn named(&mut self, regex: String, from: Place, is_character: bool) -> usize {
        let count = self.plan.terminals.len();
        let terminal = *self.known.entry(regex.clone()).or_insert(count);
        if terminal == count {
            self.plan.terminals.push(Terminal { regex, from: HashSet::new(), is_character });
        }
        let known = &mut self.plan.terminals[terminal];
        known.is_character |= is_character;
        known.from.insert(from);
        terminal
    }
}

/// What the terminals of a plan begin with, and what may follow them.
pub(super) struct Follows<'p> {
    /// The bytes that each terminal may begin with.
    firsts: &'p [Bytes],
    /// For each rule: the bytes that it may begin with, and whether it matches the empty text.
    rules: BTreeMap<usize, (Bytes, bool)>,
    /// The bytes that may follow each rule.
    behind: BTreeMap<usize, Bytes>,
    /// The bytes that may follow each terminal.
    pub(super) terminals: Vec<Bytes>,
}

impl<'p> Follows<'p> {
    pub(super) fn of(plan: &'p Plan, firsts: &'p [Bytes]) -> Self {
        let rules = plan.rules.keys().map(|rule| (*rule, (Bytes::default(), false))).collect();
        let behind = plan.rules.keys().map(|rule| (*rule, Bytes::default())).collect();
        let mut follows = Self { firsts, rules, behind, terminals: vec![Bytes::default(); firsts.len()] };
        // Rules mostly come before those that they call, so this order needs few passes.
        while plan.rules.iter().rev().fold(false, |is_new, (rule, part)| follows.begin(*rule, part) | is_new) {}
        while plan.rules.iter().fold(false, |is_new, (rule, part)| {
            let behind = follows.behind[rule];
            follows.follow(part, behind) | is_new
        }) {}
        follows
    }

    fn begin(&mut self, rule: usize, part: &Part) -> bool {
        let (begins, is_nullable) = self.first(part);
        let known = self.rules.get_mut(&rule);
        known.is_some_and(|known| known.0.add(begins) | (std::mem::replace(&mut known.1, is_nullable) != is_nullable))
    }

    /// The bytes that a part may begin with, and whether it matches the empty text, as far as is known.
    fn first(&self, part: &Part) -> (Bytes, bool) {
        match part {
            Part::Terminal(terminal) => (self.firsts[*terminal], false),
            // No text has a token's bytes.
            Part::Token(_) => (Bytes::default(), false),
            Part::Rule(rule) => self.rules.get(rule).copied().unwrap_or_default(),
            Part::All(parts) => {
                let mut all = (Bytes::default(), true);
                for part in parts.iter() {
                    let (begins, is_nullable) = self.first(part);
                    all.0.add(begins);
                    if !is_nullable {
                        return (all.0, false);
                    }
                }
                all
            }
            Part::Any(parts) => {
                parts.iter().map(|part| self.first(part)).fold((Bytes::default(), false), |mut any, part| {
                    any.0.add(part.0);
                    (any.0, any.1 || part.1)
                })
            }
            Part::Repeat { of, min, .. } => {
                let (begins, is_nullable) = self.first(of);
                (begins, is_nullable || *min == 0)
            }
        }
    }

    /// Records what follows everything in a part, if `behind` follows the part. Returns whether something was new.
    fn follow(&mut self, part: &Part, behind: Bytes) -> bool {
        match part {
            Part::Terminal(terminal) => self.terminals[*terminal].add(behind),
            Part::Token(_) => false,
            Part::Rule(rule) => self.behind.get_mut(rule).is_some_and(|known| known.add(behind)),
            Part::All(parts) => {
                let (mut behind, mut is_new) = (behind, false);
                for part in parts.iter().rev() {
                    is_new |= self.follow(part, behind);
                    let (mut begins, is_nullable) = self.first(part);
                    if is_nullable {
                        begins.add(behind);
                    }
                    behind = begins;
                }
                is_new
            }
            Part::Any(parts) => parts.iter().fold(false, |is_new, part| self.follow(part, behind) | is_new),
            Part::Repeat { of, max, .. } => {
                let mut behind = behind;
                if *max != Some(1) {
                    behind.add(self.first(of).0);
                }
                self.follow(of, behind)
            }
        }
    }
}
