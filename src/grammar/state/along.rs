//! The masks at places ahead of a text, along tokens that are read and taken back.

use super::extent::Extent;
use super::spent::Spent;
use super::{Mask, Phase, Place, State, guarded};
use crate::grammar::ahead::Ahead;
use crate::grammar::mask_error::MaskError;
use llguidance::Cancelled;

/// A token of a path that was read ahead.
struct Read {
    token: u32,
    /// The phase before it.
    phase: Phase,
    /// Whether the automaton consumed it.
    is_consumed: bool,
    /// How much was read before it.
    before: Extent,
    /// Whether the grammar allows it and all tokens before it.
    is_allowed: bool,
}

impl State {
    /// The masks at places ahead that are computed already, provided that all emitted tokens were read.
    pub(in crate::grammar) fn known(&self, ahead: &Ahead) -> Option<Vec<Mask>> {
        if ahead.is_here() {
            return Some(vec![self.mask.clone()?]);
        }
        let (tokens, masks) = self.ahead.as_ref()?;
        let is_there = ahead.is_chain() && tokens.starts_with(&ahead.tokens);
        is_there.then(|| masks[..=ahead.tokens.len()][ahead.tokens.len() + 1 - ahead.masks()..].to_vec())
    }

    /// Computes the masks before and after each of these draft tokens, and keeps them. It stops early if they take much
    /// work or some batch waits for a text.
    pub(in crate::grammar) fn look_ahead(&mut self, place: &Place, mut draft: Vec<u32>) -> Result<(), MaskError> {
        self.ahead = None;
        let here = self.next(place)?;
        if place.grammar.compiled.is_one_way || draft.is_empty() {
            return Ok(());
        }
        let masks = self.unasked(place, |state| {
            let (mut masks, mut read, mut before) = (vec![here.clone()], Vec::new(), Spent::of(state));
            while let Some(path) = draft.get(..masks.len()) {
                let now = Spent::of(state);
                if !now.is_little(before) || place.somebody_waits() {
                    break;
                }
                before = now;
                state.go_to(&mut read, path, place)?;
                masks.push(state.behind(&read, place, &here)?);
            }
            state.go_to(&mut read, &[], place)?;
            Ok(masks)
        })?;
        draft.truncate(masks.as_ref().map_or(0, |masks| masks.len() - 1));
        self.ahead = masks.filter(|_| !draft.is_empty()).map(|masks| (draft, masks));
        Ok(())
    }

    /// Does work that nobody has asked for, which must not end the text, whatever limit it hits. If it hits one, the
    /// automaton is replaced, reads the text again, and does not look ahead any more.
    pub(super) fn unasked<T>(
        &mut self,
        place: &Place,
        work: impl FnOnce(&mut Self) -> anyhow::Result<T>,
    ) -> Result<Option<T>, MaskError> {
        if self.is_cautious {
            return Ok(None);
        }
        let (phase, tokens) = (self.phase, self.consumed.len());
        match guarded(|| work(self)) {
            Ok(done) => return Ok(Some(done)),
            Err(problem) if place.is_cancelled() => return Err(self.fail(problem)),
            Err(_) => {}
        }
        let (consumed, mask) = (std::mem::take(&mut self.consumed), self.mask.take());
        *self = Self { mask, is_cautious: true, ..Self::new(place.grammar.compiled.parser(), Phase::Inside) };
        place.renew(self.cancellation(), tokens);
        let read = guarded(|| {
            for &token in &consumed[..tokens] {
                anyhow::ensure!(self.go_on(token)?, "the grammar's automaton cannot read the text again");
            }
            Ok(())
        });
        self.phase = phase;
        read.map(|()| None).map_err(|problem| self.fail(problem))
    }

    /// See [`Place::masks`].
    pub(in crate::grammar) fn along(&mut self, place: &Place, ahead: &Ahead) -> Result<Vec<Mask>, MaskError> {
        let here = self.next(place)?;
        if let Some(known) = self.known(ahead) {
            return Ok(known);
        }
        let looked = guarded(|| {
            if place.grammar.compiled.is_one_way && !ahead.is_here() {
                return self.one_by_one(place, ahead, &here);
            }
            let (mut read, mut masks) = (Vec::new(), Vec::new());
            for path in ahead.paths() {
                self.go_to(&mut read, &path, place)?;
                masks.push(self.behind(&read, place, &here)?);
            }
            self.go_to(&mut read, &[], place)?;
            Ok(masks)
        });
        looked.map_err(|problem| self.fail(problem))
    }

    /// The mask after tokens that were read ahead.
    fn behind(&mut self, read: &[Read], place: &Place, here: &Mask) -> anyhow::Result<Mask> {
        match read.last() {
            None => Ok(here.clone()),
            Some(last) if last.is_allowed => self.here(place),
            Some(_) => Ok(None),
        }
    }

    /// Moves from the path that was read ahead to another path: steps back to where they part, then reads the rest.
    fn go_to(&mut self, read: &mut Vec<Read>, path: &[u32], place: &Place) -> anyhow::Result<()> {
        let common = read.iter().zip(path).take_while(|(read, token)| read.token == **token).count();
        if let Some(parting) = read.get(common) {
            self.phase = parting.phase;
            let tokens = read[common..].iter().filter(|read| read.is_consumed).count();
            self.read = parting.before;
            self.parser.rollback(tokens)?;
            self.consumed.truncate(self.consumed.len() - tokens);
            // The cache knows masks by their position in the text, and that may have another text now.
            self.parser.invalidate_bias_cache();
            read.truncate(common);
        }
        for &token in &path[common..] {
            let (phase, tokens, before) = (self.phase, self.parser.num_tokens(), self.read);
            let is_allowed = read.last().is_none_or(|last| last.is_allowed) && self.read(&place.grammar, token)?;
            let is_consumed = self.parser.num_tokens() > tokens;
            read.push(Read { token, phase, is_consumed, before, is_allowed });
        }
        Ok(())
    }

    /// The masks at places ahead, computed with copies of an automaton that cannot step back: a copy goes on for as long
    /// as each place follows the one before it, as in a chain.
    fn one_by_one(&self, place: &Place, ahead: &Ahead, here: &Mask) -> anyhow::Result<Vec<Mask>> {
        let fresh = || State { refuelled: self.refuelled, ..State::new(self.parser.clone(), self.phase) };
        let (mut copy, mut read) = (fresh(), Vec::<Read>::new());
        let mut masks = Vec::with_capacity(ahead.masks());
        for path in ahead.paths() {
            anyhow::ensure!(!place.is_cancelled(), Cancelled);
            if !read.iter().map(|read| read.token).eq(path.iter().copied().take(read.len())) {
                (copy, read) = (fresh(), Vec::new());
            }
            copy.go_to(&mut read, &path, place)?;
            masks.push(copy.behind(&read, place, here)?);
        }
        Ok(masks)
    }
}
