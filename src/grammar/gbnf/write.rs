//! Writes rules as regular expressions and as Lark.

use super::plan::{Part, Plan};
use super::rules::{Id, Node, Rules};

/// Some consecutive nodes as a regular expression.
pub(super) struct Written {
    /// Matches all that they match except the empty text; `None` if they match nothing else.
    pub(super) regex: Option<String>,
    /// Whether they match the empty text.
    pub(super) is_nullable: bool,
}

/// Writes consecutive nodes; `None` if the expression is longer than `most`.
pub(super) fn regex(rules: &Rules, nodes: &[Id], most: usize) -> Option<Written> {
    let is_nullable = nodes.iter().all(|node| is_nullable(rules, *node));
    let writer = Writer { rules, most };
    let regex = Some(writer.some_of(nodes)?).filter(|text| text != NOTHING);
    Some(Written { regex, is_nullable })
}

/// A text as a regular expression.
pub(in crate::grammar) fn text_of(text: &str) -> String {
    text.chars().map(character).collect()
}

/// The expression that no text matches. No other expression is empty.
const NOTHING: &str = "";

fn character(character: char) -> String {
    if character.is_ascii_alphanumeric() { character.to_string() } else { format!("\\x{{{:X}}}", u32::from(character)) }
}

fn is_nullable(rules: &Rules, node: Id) -> bool {
    rules.sizes[node].is_some_and(|size| size.is_nullable)
}

struct Writer<'r> {
    rules: &'r Rules,
    most: usize,
}

impl Writer<'_> {
    fn within(&self, text: String) -> Option<String> {
        (text.len() <= self.most).then_some(text)
    }

    /// An expression for all that a node matches.
    fn all(&self, node: Id) -> Option<String> {
        let text = match &self.rules.nodes[node] {
            Node::Chars(_) => return self.some(node),
            Node::Text(text) => text_of(text),
            Node::Rule(rule) => return self.all(self.rules.rules[*rule]),
            Node::Token(_) => return None,
            Node::All(parts) => parts.iter().map(|part| self.all(*part)).collect::<Option<String>>()?,
            Node::Any(parts) => group(parts.iter().map(|part| self.all(*part)).collect::<Option<_>>()?),
            Node::Repeat { of, min, max } => repeated(self.all(*of)?, *min, *max),
        };
        self.within(text)
    }

    /// An expression for all that a node matches except the empty text.
    fn some(&self, node: Id) -> Option<String> {
        let text = match &self.rules.nodes[node] {
            Node::Chars(ranges) => chars(ranges),
            Node::Rule(rule) => return self.some(self.rules.rules[*rule]),
            Node::All(parts) => return self.some_of(parts),
            Node::Any(parts) => either(parts.iter().map(|part| self.some(*part)).collect::<Option<_>>()?),
            Node::Repeat { of, .. } if !is_nullable(self.rules, node) => repeat_of(self, node, *of)?,
            Node::Repeat { of, max, .. } => match self.some(*of)? {
                nothing if nothing == NOTHING || *max == Some(0) => NOTHING.to_owned(),
                some => repeated(some, 1, *max),
            },
            Node::Text(_) | Node::Token(_) => return self.all(node),
        };
        self.within(text)
    }

    /// An expression for all that consecutive nodes match except the empty text: either the first matches something, or
    /// the first matches the empty text and the others something.
    fn some_of(&self, nodes: &[Id]) -> Option<String> {
        let Some((first, others)) = nodes.split_first() else { return Some(NOTHING.to_owned()) };
        let behind = others.iter().map(|node| self.all(*node)).collect::<Option<String>>()?;
        if !is_nullable(self.rules, *first) {
            return self.within(self.all(*first)? + &behind);
        }
        let with_first = match self.some(*first)? {
            nothing if nothing == NOTHING => nothing,
            some => some + &behind,
        };
        self.within(either(vec![with_first, self.some_of(others)?]))
    }
}

fn repeat_of(writer: &Writer<'_>, node: Id, of: Id) -> Option<String> {
    let Node::Repeat { min, max, .. } = &writer.rules.nodes[node] else { return None };
    Some(repeated(writer.all(of)?, *min, *max))
}

/// An alternative of some expressions, without those that nothing matches.
fn either(mut options: Vec<String>) -> String {
    options.retain(|option| option != NOTHING);
    match options.len() {
        0 => NOTHING.to_owned(),
        1 => options.swap_remove(0),
        _ => group(options),
    }
}

fn group(options: Vec<String>) -> String {
    format!("(?:{})", options.join("|"))
}

fn repeated(of: String, min: u32, max: Option<u32>) -> String {
    format!("(?:{of}){}", times(min, max))
}

fn times(min: u32, max: Option<u32>) -> String {
    match (min, max) {
        (0, None) => "*".to_owned(),
        (1, None) => "+".to_owned(),
        (0, Some(1)) => "?".to_owned(),
        (min, None) => format!("{{{min},}}"),
        (min, Some(max)) => format!("{{{min},{max}}}"),
    }
}

fn chars(ranges: &[std::ops::RangeInclusive<char>]) -> String {
    let mut text = "[".to_owned();
    for range in ranges {
        text += &character(*range.start());
        if range.start() != range.end() {
            text += "-";
            text += &character(*range.end());
        }
    }
    text + "]"
}

/// Writes a plan in llguidance's Lark syntax.
pub(super) fn lark(plan: &Plan) -> String {
    let mut groups = Groups(Vec::new());
    let rules: Vec<String> =
        plan.rules.iter().map(|(rule, part)| format!("r{rule}: {}\n", groups.written(part))).collect();
    let terminals =
        plan.terminals.iter().enumerate().map(|(number, terminal)| format!("T{number}: /{}/\n", terminal.regex));
    let start = format!("start: r{}\n", plan.root);
    std::iter::once(start).chain(rules).chain(groups.0).chain(terminals).collect()
}

/// Groups as rules of their own, since Lark nests few groups.
struct Groups(Vec<String>);

impl Groups {
    fn written(&mut self, part: &Part) -> String {
        match part {
            Part::Terminal(number) => format!("T{number}"),
            Part::Token(token) => token.clone(),
            Part::Rule(rule) => format!("r{rule}"),
            Part::All(parts) if parts.is_empty() => "\"\"".to_owned(),
            Part::All(parts) => self.joined(parts, " "),
            Part::Any(parts) => {
                let options = self.joined(parts, " | ");
                self.named(&options)
            }
            Part::Repeat { of, min, max } => {
                let of = self.written(of);
                format!("{}{}", self.named(&of), times(*min, *max))
            }
        }
    }

    fn joined(&mut self, parts: &[Part], by: &str) -> String {
        parts.iter().map(|part| self.written(part)).collect::<Vec<_>>().join(by)
    }

    fn named(&mut self, text: &str) -> String {
        if text.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return text.to_owned();
        }
        let name = format!("g{}", self.0.len());
        self.0.push(format!("{name}: {text}\n"));
        name
    }
}
