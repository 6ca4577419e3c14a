//! Parses GBNF.

use super::rules::{Id, Node, Rules};
use std::collections::HashMap;
use std::ops::RangeInclusive;

/// How deep groups may be nested.
const DEEPEST: usize = 100;
/// How often a part may be repeated, as in llama.cpp.
const MAX_TIMES: u32 = 2000;

/// Parses the rules of a grammar.
///
/// # Errors
/// What is wrong, and on which line.
pub(super) fn read(text: &str) -> Result<Rules, String> {
    let mut reader = Reader { text, at: 0, rules: Rules::default(), bodies: Vec::new(), names: HashMap::new() };
    reader.all()?;
    let Reader { mut rules, bodies, mut names, .. } = reader;
    let mut places: Vec<_> = names.iter().map(|(name, (rule, at))| (*rule, *at, *name)).collect();
    places.sort_unstable();
    for (rule, at, name) in places {
        rules.rules.push(bodies[rule].ok_or_else(|| format!("line {}: rule {name} is not defined", line(text, at)))?);
    }
    let (root, _) = names.remove("root").ok_or("has no rule named root; every text begins there, so add one")?;
    rules.root = root;
    Ok(rules)
}

fn line(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

struct Reader<'t> {
    text: &'t str,
    /// How much of the text was read.
    at: usize,
    rules: Rules,
    /// The body of each rule; `None` if the rule was called but not defined yet.
    bodies: Vec<Option<Id>>,
    /// The number of each rule by its name, and where it is first named.
    names: HashMap<&'t str, (usize, usize)>,
}

impl<'t> Reader<'t> {
    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn wrong<T>(&self, message: &str) -> Result<T, String> {
        Err(format!("line {}: {message}", line(self.text, self.at)))
    }

    fn next(&mut self) -> Option<char> {
        let next = self.rest().chars().next()?;
        self.at += next.len_utf8();
        Some(next)
    }

    fn take(&mut self, sign: &str) -> bool {
        let is_there = self.rest().starts_with(sign);
        self.at += if is_there { sign.len() } else { 0 };
        is_there
    }

    /// Skips white space and comments.
    fn skip(&mut self) {
        loop {
            let rest = self.rest().trim_start();
            self.at = self.text.len() - rest.len();
            if !rest.starts_with('#') {
                return;
            }
            self.at += rest.find('\n').unwrap_or(rest.len());
        }
    }

    /// Reads a rule's name; empty if there is none.
    fn name(&mut self) -> &'t str {
        let rest = self.rest();
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let name = &rest[..rest.find(|c| !is_of_name(c)).unwrap_or(rest.len())];
        self.at += name.len();
        name
    }

    /// Whether a rule begins here.
    fn is_rule(&mut self) -> bool {
        let before = self.at;
        let is_named = !self.name().is_empty();
        self.skip();
        let is_rule = is_named && self.rest().starts_with("::=");
        self.at = before;
        is_rule
    }

    fn all(&mut self) -> Result<(), String> {
        self.skip();
        while !self.rest().is_empty() {
            let name = self.name();
            self.skip();
            if name.is_empty() || !self.take("::=") {
                return self.wrong("expected a rule, name ::= ..., with only letters, digits, - and _ in its name");
            }
            let rule = self.rule(name);
            if self.bodies[rule].is_some() {
                return self.wrong(&format!("rule {name} is already defined"));
            }
            self.bodies[rule] = Some(self.choice(0)?);
        }
        Ok(())
    }

    fn rule(&mut self, name: &'t str) -> usize {
        let (at, count) = (self.at, self.bodies.len());
        let (rule, _) = *self.names.entry(name).or_insert((count, at));
        if rule == count {
            self.bodies.push(None);
        }
        rule
    }

    /// Reads alternatives, up to a bracket or the next rule.
    fn choice(&mut self, depth: usize) -> Result<Id, String> {
        if depth > DEEPEST {
            return self.wrong(&format!("groups are nested more than {DEEPEST} deep"));
        }
        let mut options = vec![self.sequence(depth)?];
        while self.take("|") {
            options.push(self.sequence(depth)?);
        }
        Ok(if options.len() == 1 { options[0] } else { self.rules.add(Node::Any(options)) })
    }

    fn sequence(&mut self, depth: usize) -> Result<Id, String> {
        let mut parts = vec![];
        loop {
            self.skip();
            let node = match self.rest().chars().next() {
                None | Some('|' | ')') => break,
                Some('"') => self.literal()?,
                Some('[') => self.class()?,
                Some('.') => {
                    self.at += 1;
                    Node::Chars(vec!['\0'..=char::MAX])
                }
                Some('<') => self.token()?,
                Some('(') => {
                    self.at += 1;
                    let group = self.choice(depth + 1)?;
                    if !self.take(")") {
                        return self.wrong("a group is not closed with )");
                    }
                    parts.push(group);
                    continue;
                }
                Some('*' | '+' | '?' | '{') => {
                    let (min, max) = self.times()?;
                    let Some(of) = parts.pop() else {
                        return self.wrong("there is nothing before *, +, ? or {} to repeat");
                    };
                    Node::Repeat { of, min, max }
                }
                Some('!') => return self.wrong("!<...> is not supported; write <[^7]> for any token except 7"),
                Some(_) if self.is_rule() => break,
                Some(other) => match self.name() {
                    "" => return self.wrong(&format!("unexpected {other:?}; put text in double quotes")),
                    name => Node::Rule(self.rule(name)),
                },
            };
            parts.push(self.rules.add(node));
        }
        Ok(if parts.len() == 1 { parts[0] } else { self.rules.add(Node::All(parts)) })
    }

    /// Reads how often the part before it is repeated.
    fn times(&mut self) -> Result<(u32, Option<u32>), String> {
        match self.next() {
            Some('*') => return Ok((0, None)),
            Some('+') => return Ok((1, None)),
            Some('?') => return Ok((0, Some(1))),
            _ => {}
        }
        let (inner, _) = self.rest().split_once('}').unwrap_or_default();
        let (min, max) = inner.split_once(',').unwrap_or((inner, inner));
        let number = |text: &str| text.trim().parse::<u32>().ok().filter(|_| !text.contains('+'));
        let times = match (number(min), max.trim()) {
            (Some(min), "") => Some((min, None)),
            (Some(min), max) => number(max).map(|max| (min, Some(max))),
            // {,n}
            (None, max) => number(max).filter(|_| min.trim().is_empty()).map(|max| (0, Some(max))),
        };
        match times {
            None => self.wrong("not a valid repeat count; write {m}, {m,}, {,n} or {m,n}"),
            Some((min, Some(max))) if min > max => {
                self.wrong(&format!("{{{min},{max}}} has a minimum above its maximum; swap them"))
            }
            Some((min, max)) if min.max(max.unwrap_or(0)) > MAX_TIMES => {
                self.wrong(&format!("a part may be repeated at most {MAX_TIMES} times; use * for no limit"))
            }
            Some(times) => {
                self.at += inner.len() + 1;
                Ok(times)
            }
        }
    }

    fn literal(&mut self) -> Result<Node, String> {
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.rest().chars().next() {
                None => return self.wrong("a text in double quotes is not closed"),
                Some('"') => break,
                Some(_) => text.push(self.character()?),
            }
        }
        self.at += 1;
        Ok(Node::Text(text))
    }

    fn class(&mut self) -> Result<Node, String> {
        self.at += 1;
        let is_not = self.take("^");
        let mut ranges = vec![];
        while !self.take("]") {
            if self.rest().is_empty() {
                return self.wrong("a character class is not closed with ]");
            }
            let first = self.character()?;
            let is_range = self.rest().starts_with('-') && !self.rest().starts_with("-]");
            let last = if is_range {
                self.at += 1;
                self.character()?
            } else {
                first
            };
            if first > last {
                return self.wrong(&format!("the range {first:?}-{last:?} is reversed; swap its ends"));
            }
            ranges.push(first..=last);
        }
        let ranges = if is_not { without(&ranges) } else { joined(ranges) };
        if ranges.is_empty() { self.wrong("a character class matches nothing") } else { Ok(Node::Chars(ranges)) }
    }

    /// Reads a token, as `<[7]>` or by its name `<|end|>`.
    fn token(&mut self) -> Result<Node, String> {
        let rest = self.rest();
        let name = rest.find('>').map_or("", |end| &rest[..=end]);
        if name.len() < 3 || name.contains(char::is_whitespace) {
            return self.wrong("not a valid token; write <[7]> or <|name|>");
        }
        self.at += name.len();
        Ok(Node::Token(name.to_owned()))
    }

    /// Reads a character of a text or a class.
    fn character(&mut self) -> Result<char, String> {
        let first = self.next().unwrap_or_default();
        if first != '\\' {
            return Ok(first);
        }
        let sign = self.next().unwrap_or_default();
        Ok(match sign {
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'a' => '\x07',
            'b' => '\x08',
            'f' => '\x0c',
            'v' => '\x0b',
            'e' => '\x1b',
            '0' => '\0',
            'x' => return self.coded(2),
            'u' => return self.coded(4),
            'U' => return self.coded(8),
            sign if sign.is_ascii_punctuation() => sign,
            _ => {
                return self.wrong(
                    "unknown escape; known: \\n, \\r, \\t, \\a, \\b, \\e, \\f, \\v, \\0, \\xHH, \\uHHHH, \\UHHHHHHHH, and punctuation after a \\",
                );
            }
        })
    }

    fn coded(&mut self, digits: usize) -> Result<char, String> {
        let code = self.rest().get(..digits).filter(|digits| !digits.contains('+'));
        let code = code.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        match code.and_then(char::from_u32) {
            Some(character) => {
                self.at += digits;
                Ok(character)
            }
            None => self.wrong(&format!("expected {digits} hexadecimal digits of a valid character")),
        }
    }
}

type Ranges = Vec<RangeInclusive<char>>;

/// The same characters as ascending ranges that do not overlap.
fn joined(mut ranges: Ranges) -> Ranges {
    ranges.sort_unstable_by_key(|range| (*range.start(), *range.end()));
    let mut all: Ranges = vec![];
    for range in ranges {
        match all.last_mut() {
            Some(last) if range.start() <= last.end() => *last = *last.start()..=*last.end().max(range.end()),
            _ => all.push(range),
        }
    }
    all
}

/// All other characters.
fn without(ranges: &Ranges) -> Ranges {
    let (mut others, mut from) = (vec![], Some('\0'));
    for range in joined(ranges.clone()) {
        if let (Some(from), Some(to)) = (from, before(*range.start()))
            && from <= to
        {
            others.push(from..=to);
        }
        from = behind(*range.end());
    }
    others.extend(from.map(|from| from..=char::MAX));
    others
}

fn before(character: char) -> Option<char> {
    ('\0'..character).next_back()
}

fn behind(character: char) -> Option<char> {
    (character..=char::MAX).nth(1)
}
