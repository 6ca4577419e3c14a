//! A step's tokens in shared memory: the worker, and anybody else who maps the region, gets them without a message.
//!
//! The layout is that of `TokenSlots` in the wire contract.

use super::step::{Done, RowFailure};
use super::work::Work;
use crate::params::FieldError;
use crate::region::Region;
use crate::sampling::row::RowOutput;
use crate::sequence::FinishReason;
use crate::sequence::speculation::NextDraft;
use std::sync::Arc;

/// Bytes of a word.
const WORD: usize = size_of::<u32>();
/// Words of the head, and of a slot.
const WORDS: usize = 4;
/// Bytes of the head, and of a slot.
pub const BYTES: usize = WORDS * WORD;

/// `RowStatus` of work that was done, as on the wire.
const OK: u32 = 1;
/// The bit at which the reason for the end of a text begins.
const FINISH: u32 = 8;
/// Marks the last slot of its work.
const LAST: u32 = 1 << 16;
/// Says that logprob and rank are set.
const LOGPROB: u32 = 1 << 17;
const TRUNCATED: u32 = 1 << 18;
const ROUNDED: u32 = 1 << 19;

/// The place where a step's tokens go.
#[derive(Debug)]
pub struct Slots {
    region: Arc<Region>,
    offset: usize,
    /// Whether the reply may leave out what the slots say.
    instead: bool,
}

impl Slots {
    /// A place in a region that has room for all possible results of `work`.
    ///
    /// # Errors
    /// When the region has too little room or is on a device.
    pub fn new(region: Arc<Region>, offset: u64, instead: bool, work: &[Work]) -> Result<Self, FieldError> {
        if let Some(device) = region.device() {
            let message = format!(
                "is in the memory of {device}, but tokens are written to host memory; lease a region without a device"
            );
            return Err(FieldError::new("region_id", message));
        }
        if !offset.is_multiple_of(BYTES as u64) {
            return Err(FieldError::new("offset", format!("is {offset}, must be a multiple of {BYTES}")));
        }
        let slots = work.iter().map(|work| work.rows().max(1)).fold(0, usize::saturating_add);
        let (len, bytes) = (region.len(), slots.saturating_add(1).saturating_mul(BYTES));
        match usize::try_from(offset).ok().filter(|&offset| offset <= len && len - offset >= bytes) {
            Some(offset) => Ok(Self { region, offset, instead }),
            None => {
                let message = format!(
                    "is {offset}: {slots} slots and their head take {bytes} bytes from there, but the region has {len}"
                );
                Err(FieldError::new("offset", message))
            }
        }
    }

    /// Writes the results of a step. Returns whether the reply may leave them out.
    pub(super) fn tell(&self, step_id: u64, work: &[Result<Done, RowFailure>]) -> bool {
        // `new` has checked that the region is in the host's memory.
        let Some(memory) = self.region.words() else { return false };
        let (mut count, mut is_all) = (0, true);
        memory.withdraw(self.offset, !(step_id as u32));
        for done in work {
            is_all &= each_slot(done, |slot| {
                count += 1;
                memory.write(self.offset + count * BYTES, slot);
            });
        }
        memory.write(self.offset + WORD, [u32::from(is_all), count as u32, 0]);
        memory.publish(self.offset, step_id as u32);
        is_all && self.instead
    }
}

/// Passes the slots of a work to `put`. Returns whether they say everything about it.
fn each_slot(done: &Result<Done, RowFailure>, mut put: impl FnMut([u32; WORDS])) -> bool {
    let nothing = |next: &NextDraft| next.tokens.is_empty() && next.advised.is_none();
    match done {
        Err(failure) => {
            put([0, failure.status as u32 | LAST, 0, 0]);
            false
        }
        Ok(Done::Sampled { output, finish, next, state }) => {
            put(slot(output, OK | finished(*finish) | LAST));
            is_told(output) && nothing(next) && state.is_none()
        }
        Ok(Done::Drafted { token, finish, truncated }) => {
            let truncated = if *truncated { TRUNCATED } else { 0 };
            put([*token, OK | finished(*finish) | truncated | LAST, 0, 0]);
            true
        }
        Ok(Done::Scored(outputs)) => all(outputs, 0, put),
        Ok(Done::Verified { verification, finish, .. }) => {
            all(&verification.outputs, finished(*finish), put);
            // Only the reply says how many tokens were accepted, by what path, and what to draft next.
            false
        }
    }
}

/// Passes the slots of several tokens of one work to `put`. Returns whether they say everything about the tokens.
fn all(outputs: &[RowOutput], finish: u32, mut put: impl FnMut([u32; WORDS])) -> bool {
    for (i, output) in outputs.iter().enumerate() {
        let end = if i + 1 == outputs.len() { LAST | finish } else { 0 };
        put(slot(output, OK | end));
    }
    outputs.iter().all(is_told)
}

fn finished(reason: Option<FinishReason>) -> u32 {
    reason.map_or(0, |reason| (reason as u32) << FINISH)
}

fn slot(output: &RowOutput, state: u32) -> [u32; WORDS] {
    let mark = |is_so: bool, bit: u32| if is_so { bit } else { 0 };
    let state = state | mark(output.approximation.truncated, TRUNCATED) | mark(output.approximation.rounded, ROUNDED);
    match &output.logprobs {
        None => [output.token, state, 0, 0],
        Some(logprobs) => [output.token, state | LOGPROB, logprobs.logprob.to_bits(), logprobs.rank],
    }
}

/// Whether a slot says everything about a token.
fn is_told(output: &RowOutput) -> bool {
    let lists =
        |logprobs: &crate::sampling::row::TokenLogprobs| !logprobs.top.is_empty() || !logprobs.requested.is_empty();
    output.report.is_none() && !output.logprobs.as_ref().is_some_and(lists)
}
