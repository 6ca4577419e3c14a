//! A group: sequences whose rows travel in one message.

use super::BenchArgs;
use super::pool::RowPool;
use crate::proto::{self, step::Logits, work::Kind};
use tokio::time::Instant;

/// Output tokens of a sequence. Then another sequence replaces it, so that histories have realistic lengths.
const OUTPUT_TOKENS: u32 = 1024;
/// Prompt tokens of a sequence.
const PROMPT_TOKENS: u32 = 64;

/// Some sequences of a stream that are always at the same position.
#[derive(Debug)]
pub(super) struct Group {
    /// When the current step was due. The time of the step is measured from then.
    pub(super) due: Instant,
    /// Ids of the first generation of sequences. Each later generation adds `batch`.
    ids: std::ops::Range<u64>,
    stream: u64,
    generation: u64,
    turn: u64,
    outputs: u32,
}

impl Group {
    /// Splits the sequences of a stream into groups whose rows fit into one message.
    pub(super) fn split(args: &BenchArgs, stream: u64) -> Vec<Group> {
        let (batch, rows) = (args.batch as u64, args.rows_per_message());
        let group = |first: u64| Group {
            due: Instant::now(),
            ids: first..(first + rows as u64).min(batch),
            stream,
            generation: 0,
            // Each group starts at another place of the pool.
            turn: first * 7,
            outputs: 0,
        };
        (0..batch).step_by(rows).map(group).collect()
    }

    /// Makes the next step. It can be called again after a refusal, because a refused step has changed nothing.
    pub(super) fn step(
        &self,
        step_id: usize,
        args: &BenchArgs,
        pool: &RowPool,
        region: Option<&proto::RegionLease>,
    ) -> proto::Step {
        let shift = self.generation * args.batch as u64;
        let ids = self.ids.start + shift..self.ids.end + shift;
        let (mut open, mut close) = (Vec::new(), Vec::new());
        if self.outputs == 0 {
            open = ids.clone().map(|id| self.open(id, args)).collect();
            if self.generation > 0 {
                close = ids.clone().map(|id| id - args.batch as u64).collect();
            }
        }
        let sample = |id| proto::Work {
            sequence_id: Some(id),
            first_row: None,
            kind: Some(Kind::Sample(proto::SampleWork {})),
            ..Default::default()
        };
        let rows = self.rows();
        let logits = match region {
            None => Logits::Inline(proto::InlineLogits { data: pool.slice(rows, self.turn), row_stride: 0 }),
            Some(&proto::RegionLease { region_id, generation, .. }) => {
                let (offset, rows) = (pool.offset(self.turn) as u64, rows as u32);
                Logits::Region(proto::RegionLogits { region_id, generation, offset, rows, row_stride: 0 })
            }
        };
        proto::Step {
            step_id: step_id as u64,
            close_sequence_ids: close,
            open,
            work: ids.map(sample).collect(),
            logits: Some(logits),
            ..Default::default()
        }
    }

    /// Number of rows in a step.
    pub(super) fn rows(&self) -> usize {
        self.ids.clone().count()
    }

    /// The turn of the pool that the next step uses.
    pub(super) fn turn(&self) -> u64 {
        self.turn
    }

    /// Notes that the step was answered. The next one is due at `due`.
    pub(super) fn answered(&mut self, due: Instant) {
        self.due = due;
        self.turn += 1;
        self.outputs += 1;
        if self.outputs == OUTPUT_TOKENS {
            self.outputs = 0;
            self.generation += 1;
        }
    }

    fn open(&self, id: u64, args: &BenchArgs) -> proto::OpenSequence {
        let prompt = (0..PROMPT_TOKENS).map(|i| (id as u32).wrapping_mul(31).wrapping_add(i * 97) % args.vocab);
        proto::OpenSequence {
            sequence_id: id,
            params: Some(args.mix.params(id, args.seed ^ (self.stream << 32))),
            prompt_token_ids: prompt.collect(),
            output_token_ids: Vec::new(),
            sampler_state: None,
            predicted_output_token_ids: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> BenchArgs {
        BenchArgs { vocab: 16, batch: 5, message_bytes: 2 * 64, ..Default::default() }
    }

    #[test]
    fn every_sequence_is_in_one_group_and_messages_are_of_the_size_asked_for() {
        let groups = Group::split(&args(), 0);
        let ids: Vec<_> = groups.iter().map(|group| group.ids.clone()).collect();
        assert_eq!(ids, [0..2, 2..4, 4..5]);
    }

    #[test]
    fn a_full_sequence_gives_way_to_a_new_one() {
        let args = args();
        let pool = RowPool::new(&args);
        let mut group = Group::split(&args, 0).remove(1);
        let first = group.step(1, &args, &pool, None);
        assert_eq!(first.open.iter().map(|open| open.sequence_id).collect::<Vec<_>>(), [2, 3]);
        assert_eq!(group.step(1, &args, &pool, None), first, "a refused step is sent again as it was");
        for _ in 0..OUTPUT_TOKENS {
            group.answered(Instant::now());
        }
        let next = group.step(1, &args, &pool, None);
        assert_eq!(next.close_sequence_ids, [2, 3]);
        assert_eq!(next.open.iter().map(|open| open.sequence_id).collect::<Vec<_>>(), [7, 8]);
    }
}
