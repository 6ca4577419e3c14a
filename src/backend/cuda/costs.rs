//! How long a team (the blocks that work on one row) takes for a row: predicted, until [`super::tune`] has measured it
//! on this device.

use super::abi::MAX_TEAM;

/// The cost of a team while as many teams run as can at once, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// For each row, however short: barriers, lists, the draw.
    pub row: f32,
    /// For each chunk in the slice of a row that one block works on.
    pub chunk: f32,
}

impl Cost {
    /// A cost that is never the least, so that other teams are chosen.
    const NEVER: Self = Self { row: f32::INFINITY, chunk: 0.0 };

    /// Whether such a team must not be used.
    #[must_use]
    pub fn is_never(self) -> bool {
        self.row.is_infinite()
    }

    /// The cost of a row of which each block has so many chunks.
    #[must_use]
    pub fn slice(self, chunks: f32) -> f32 {
        self.row + self.chunk * chunks
    }

    /// The line through two measurements, each of them the chunks of a slice and the microseconds. `None` if they give
    /// no line, or one that falls.
    #[must_use]
    pub fn through((few, less): (u32, f32), (many, more): (u32, f32)) -> Option<Self> {
        let chunk = (more - less) / (many as f32 - few as f32);
        let row = less - chunk * few as f32;
        // Rows are never free, whatever the smaller measurement says.
        (few < many && chunk.is_finite() && chunk > 0.0).then_some(Self { row: row.max(0.1), chunk })
    }
}

/// The costs of teams of each size, for logits of two and of four bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs([[Cost; MAX_TEAM as usize]; 2]);

impl Costs {
    /// From the arithmetic of docs/performance-notes.md ("What predictions made without a GPU were worth") for an H100,
    /// whose L2 cache does not hold the rows of 132 teams of one block.
    pub const PREDICTED: Self = Self([predicted(1.5, 1.5), predicted(2.3, 1.7)]);

    /// Costs that make the device take whole rounds of rows with one block each, and the remaining rows with teams of
    /// two. Such a team takes less time for a row, but so much more than half that only the remaining rows, at most one
    /// round, go to it.
    pub const IN_PARTS: Self = {
        let mut costs = Self([[Cost::NEVER; MAX_TEAM as usize]; 2]);
        let mut at = 0;
        while at < costs.0.len() {
            costs.0[at][0] = Cost { row: 75.0, chunk: 0.0 };
            costs.0[at][1] = Cost { row: 50.0, chunk: 0.0 };
            at += 1;
        }
        costs
    };

    /// Costs that make the device use only teams of so many blocks, as far as these can hold a row.
    #[must_use]
    pub fn only(team_size: u32) -> Self {
        let mut costs = Self::PREDICTED;
        for (at, cost) in costs.0.iter_mut().flat_map(|teams| teams.iter_mut().enumerate()) {
            if at as u32 + 1 != team_size {
                *cost = Cost::NEVER;
            }
        }
        costs
    }

    /// The cost of teams of so many blocks, for logits of so many bytes.
    #[must_use]
    pub fn of(&self, team_size: u32, element_bytes: u32) -> Cost {
        self.0[Self::place(element_bytes)][team_size as usize - 1]
    }

    /// Replaces a cost.
    pub fn set(&mut self, team_size: u32, element_bytes: u32, cost: Cost) {
        self.0[Self::place(element_bytes)][team_size as usize - 1] = cost;
    }

    fn place(element_bytes: u32) -> usize {
        usize::from(element_bytes > 2)
    }
}

/// Predicted costs: for teams of one block, which have no barriers with other blocks, and for all others.
const fn predicted(one_block: f32, many_blocks: f32) -> [Cost; MAX_TEAM as usize] {
    let mut costs = [Cost { row: 5.0, chunk: one_block }; MAX_TEAM as usize];
    let mut at = 1;
    while at < costs.len() {
        costs[at] = Cost { row: 6.0 + 0.1 * (at + 1) as f32, chunk: many_blocks };
        at += 1;
    }
    costs
}

impl std::fmt::Display for Costs {
    /// One line: for each team size, the microseconds for a row and for each chunk of a slice.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (bytes, teams) in [2, 4].into_iter().zip(&self.0) {
            write!(f, "{}{bytes} bytes a logit:", if bytes == 2 { "" } else { "; " })?;
            for (at, cost) in teams.iter().enumerate() {
                write!(f, " {}: {:.1}+{:.2}", at + 1, cost.row, cost.chunk)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_goes_through_two_measurements() {
        assert_eq!(Cost::through((2, 8.0), (8, 17.0)), Some(Cost { row: 5.0, chunk: 1.5 }));
        assert_eq!(Cost { row: 5.0, chunk: 1.5 }.slice(4.0), 11.0);
        // An amount that is too small to be measured does not become negative.
        assert_eq!(Cost::through((2, 2.0), (4, 4.0)), Some(Cost { row: 0.1, chunk: 1.0 }));
        for ((few, less), (many, more)) in
            [((2, 8.0), (8, 8.0)), ((2, 8.0), (8, 7.0)), ((2, 8.0), (2, 9.0)), ((1, f32::NAN), (2, 1.0))]
        {
            assert_eq!(Cost::through((few, less), (many, more)), None);
        }
    }

    #[test]
    fn one_team_can_be_asked_for() {
        let costs = Costs::only(3);
        for team in 1..=MAX_TEAM {
            assert_eq!(costs.of(team, 4).slice(1.0).is_finite(), team == 3);
            assert_eq!(costs.of(team, 2).slice(1.0).is_finite(), team == 3);
        }
        let mut costs = Costs::PREDICTED;
        costs.set(2, 4, Cost { row: 1.0, chunk: 2.0 });
        assert_eq!((costs.of(2, 4).row, costs.of(2, 2)), (1.0, Costs::PREDICTED.of(2, 2)));
        assert!(costs.to_string().contains("; 4 bytes a logit: 1: 5.0+2.30 2: 1.0+2.00 3:"), "{costs}");
    }
}
