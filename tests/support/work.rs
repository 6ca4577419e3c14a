//! Short forms for draft and verify work.

use crate::support::*;
use croupier::proto::verify_work::DraftDistribution;
use croupier::proto::*;

/// Verify work on draft tokens that form a chain.
pub fn chain(draft_token_ids: &[u32], from: DraftDistribution) -> VerifyWork {
    VerifyWork { draft_token_ids: draft_token_ids.to_vec(), draft_distribution: Some(from), ..Default::default() }
}

pub fn kept() -> DraftDistribution {
    DraftDistribution::Kept(KeptDraft {})
}

pub fn deterministic() -> DraftDistribution {
    DraftDistribution::Deterministic(DeterministicDraft {})
}

/// Sparse rows, one per draft token.
pub fn sparse(rows: &[&[(u32, f32)]]) -> DraftDistribution {
    DraftDistribution::Sparse(SparseDraft {
        counts: rows.iter().map(|row| row.len() as u32).collect(),
        token_ids: rows.iter().flat_map(|row| row.iter().map(|entry| entry.0)).collect(),
        probs: rows.iter().flat_map(|row| row.iter().map(|entry| entry.1)).collect(),
    })
}

pub fn dense(rows: &[Vec<f32>]) -> DraftDistribution {
    let probs = rows.iter().flatten().flat_map(|prob| prob.to_le_bytes()).collect::<Vec<u8>>().into();
    DraftDistribution::Dense(DenseDraft { probs, dtype: LogitsDtype::F32.into() })
}

pub fn verify_work(sequence_id: u64, verify: VerifyWork) -> Work {
    Work {
        sequence_id: Some(sequence_id),
        first_row: None,
        kind: Some(work::Kind::Verify(verify)),
        ..Default::default()
    }
}

pub fn draft_work(sequence_id: u64, draft: DraftWork) -> Work {
    Work { sequence_id: Some(sequence_id), kind: Some(work::Kind::Draft(draft)), ..Default::default() }
}

/// A step of one work on these rows.
pub fn step_of(work: Work, rows: &[Vec<f32>]) -> Step {
    Step { work: vec![work], logits: inline(rows), ..Default::default() }
}

/// The only result of a step, which is OK.
pub fn only(result: StepResult) -> WorkResult {
    let [work]: [WorkResult; 1] = result.work.try_into().unwrap();
    assert_eq!(work.status(), RowStatus::Ok, "{}", work.message);
    work
}

pub fn ids(work: &WorkResult) -> Vec<u32> {
    work.tokens.iter().map(|token| token.token_id).collect()
}

impl Worker {
    /// One draft token from a row.
    pub async fn draft(&mut self, sequence_id: u64, draft: DraftWork, row: Vec<f32>) -> u32 {
        let work = only(self.step(step_of(draft_work(sequence_id, draft), &[row])).await);
        assert_eq!((work.tokens.len(), work.tokens[0].logprob), (1, None));
        work.tokens[0].token_id
    }

    /// One verification.
    pub async fn verify(&mut self, sequence_id: u64, verify: VerifyWork, rows: &[Vec<f32>]) -> WorkResult {
        only(self.step(step_of(verify_work(sequence_id, verify), rows)).await)
    }
}
