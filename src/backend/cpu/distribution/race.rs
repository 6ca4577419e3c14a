//! The draw by a race. The specification looks at every token; here whole blocks are passed over if none of their
//! tokens can arrive before the one that is first so far.

use super::{Distribution, Kind, Store};
use crate::backend::cpu::keys;
use crate::backend::cpu::passes::BLOCK;
use crate::backend::cpu::select;
use crate::backend::cpu::view::View;
use crate::sampling::mass::MASS_ONE;
use crate::sampling::watermark::race::{First, Race, arrival};

/// A factor larger than any rounding in the comparison.
const SLACK: f64 = 1.0 + 1e-5;

/// The token that is first so far, among those looked at.
pub(in crate::backend::cpu) struct RaceLeader {
    race: Race,
    first: First,
}

impl RaceLeader {
    pub(in crate::backend::cpu) fn new(race: Race) -> Self {
        Self { race, first: First::default() }
    }

    /// Whether a token with at most this word and this mass may come first. It arrives after more than `1 - r`, since
    /// `-ln r >= 1 - r`, and `r` is below `(word + 1) / 2^32`.
    fn may_win(&self, word: u32, mass: f64) -> bool {
        let least = f64::from(u32::MAX - word) / 4_294_967_296.0;
        least <= self.first.arrival() * mass * SLACK
    }

    /// Adds a token whose word is known.
    fn add(&mut self, token: u32, word: u32, mass: u64) {
        if mass > 0 && self.may_win(word, mass as f64) {
            self.first.add(token, arrival(self.race.number_of(token, word), mass));
        }
    }

    /// Adds the tokens of a list.
    pub(in crate::backend::cpu) fn add_all(&mut self, tokens: impl Iterator<Item = (u32, u64)>) {
        for (token, mass) in tokens.filter(|&(_, mass)| mass > 0) {
            self.add(token, self.race.word(token), mass);
        }
    }

    /// The winner.
    pub(in crate::backend::cpu) fn token(&self) -> u32 {
        self.first.token().expect("some token has a mass; this is a bug")
    }
}

impl Distribution {
    /// By a race if there is one, else as [`draw`](Self::draw).
    pub(in crate::backend::cpu) fn draw_by(
        &self,
        race: Option<Race>,
        view: &View<'_>,
        uniform: u64,
        store: &mut Store,
    ) -> u32 {
        match race {
            Some(race) => self.first_of(race, view, store),
            None => self.draw(view, uniform, store),
        }
    }

    fn first_of(&self, race: Race, view: &View<'_>, store: &Store) -> u32 {
        let mut leader = RaceLeader::new(race);
        match self.kind {
            Kind::One => return keys::token(self.last_key),
            Kind::List => {
                leader.add_all(store.keys.iter().map(|&key| keys::token(key)).zip(store.masses.iter().copied()));
            }
            Kind::Chain => leader.add_all(store.chain.all_masses()),
            Kind::Blocks => self.run_blocks(&mut leader, view, store),
            Kind::Lots | Kind::Shaped => unreachable!("one draw without a race is all that it is for; this is a bug"),
        }
        leader.token()
    }

    fn run_blocks(&self, leader: &mut RaceLeader, view: &View<'_>, store: &Store) {
        // Begins with the most likely token, which is always kept: a token that is hard to beat saves work.
        leader.add_all(std::iter::once((select::first(view), MASS_ONE)));
        let (mut words, mut masses) = ([0; BLOCK], [0; BLOCK]);
        for block in (0..view.blocks()).filter(|&block| store.sums[block] > 0) {
            let most = view.passes().race_words(leader.race, block, &mut words);
            // The cheapest bound comes first.
            if !leader.may_win(most, store.sums[block] as f64) {
                continue;
            }
            // No token in the block weighs more than its largest logit does, up to rounding, nor more than the whole
            // block.
            let heaviest = (self.mass(view.maxima[block]) + 1).min(store.sums[block]);
            if !leader.may_win(most, heaviest as f64) {
                continue;
            }
            let values = view.block(block);
            view.passes().masses(&values, self.weigh, &mut masses);
            for (i, ((&logit, &mass), &word)) in values.iter().zip(&masses).zip(&words).enumerate() {
                let token = (block * BLOCK + i) as u32;
                if mass >= self.need && keys::key(token, logit) <= self.last_key {
                    leader.add(token, word, mass);
                }
            }
        }
    }
}
