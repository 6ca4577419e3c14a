//! Measures how long teams (blocks that work on one row) take on this device, before it serves. Which team is fastest
//! depends on the device's memory, caches and multiprocessors. No result depends on it.

use super::abi::MAX_TEAM;
use super::ask::Asked;
use super::costs::{Cost, Costs};
use super::gpu::Gpu;
use super::kinds::row;
use super::launches::MAX_ROWS;
use super::machine::Launch;
use super::shape::{Laid, Shape, chunk, shape_of_team};
use super::{CudaBackend, DriverError, Machine, RowJob};
use crate::sampling::logits::{Dtype, Logits};
use crate::sampling::philox::{Purpose, uniform};
use crate::sampling::row::{Action, Filters, RowSpec};

/// The tokens of the rows that are measured. With the second length, blocks of each team have more chunks.
const VOCAB_SIZES: [usize; 2] = [32_000, 128_256];
/// Each team that runs at once gets so many rows in turn, as far as they fit into a launch: a team looks at one row
/// while the next is being loaded.
const IN_TURN: u32 = 2;
/// The shortest time of this many launches counts; each launch follows another one over the same rows.
const ROUNDS: usize = 5;
/// What the rows ask for, in turn: temperature, top-k and top-p.
const MIX: [(f32, u32, f32); 3] = [(0.0, 0, 1.0), (0.8, 50, 0.9), (0.8, 0, 1.0)];

/// The costs of teams of each size: measured if possible, otherwise predicted.
pub(super) fn measure(backend: &mut CudaBackend) -> Result<Costs, DriverError> {
    let mut costs = Costs::PREDICTED;
    for dtype in [Dtype::Bf16, Dtype::F32] {
        let [few, many] = VOCAB_SIZES;
        let (few, many) = (of_teams(backend, dtype, few)?, of_teams(backend, dtype, many)?);
        for ((few, many), team_size) in few.into_iter().zip(many).zip(1..) {
            if let Some(cost) = few.zip(many).and_then(|(few, many)| Cost::through(few, many)) {
                costs.set(team_size, dtype.size() as u32, cost);
            }
        }
    }
    Ok(costs)
}

/// For each team size, the chunks of a slice and the microseconds for a row; `None` for sizes that cannot run.
type Measured = [Option<(u32, f32)>; MAX_TEAM as usize];

fn of_teams(backend: &mut CudaBackend, dtype: Dtype, vocab_size: usize) -> Result<Measured, DriverError> {
    let device = backend.launches.machine.facts();
    let bytes = dtype.encode(&row(vocab_size));
    let logits = Logits::new(dtype, &bytes);
    let jobs: Vec<RowJob<'_>> = (0..).zip(MIX).map(|(at, cuts)| RowJob { logits, spec: spec(at, cuts) }).collect();
    // The rows need equally much room.
    let fit = backend.launches.input_bytes / Asked::row(jobs[0]).room();
    let most = fit.min(MAX_ROWS).min(device.resident(1).saturating_mul(IN_TURN) as usize).max(1);
    let asked: Vec<Asked<'_>> = (0..most).map(|at| Asked::row(jobs[at % jobs.len()])).collect();
    let launch = backend.upload(&asked)?;
    let chunks = (vocab_size as u32).div_ceil(chunk(device.threads));
    let mut measured = Measured::default();
    for (team_size, place) in (1..=device.most_blocks()).zip(&mut measured) {
        let shape = shape_of_team(most as u32, chunks, dtype.size() as u32, team_size, &device);
        *place = Some((shape.slice_chunks, row_time(backend, &launch, shape)?));
    }
    Ok(measured)
}

/// The microseconds for a row while as many rows run as can at once, without the time of the launch itself. Both times
/// are measured after a whole launch, because a launch without rows is over before the host has queued the next one.
fn row_time(backend: &CudaBackend, launch: &Launch, shape: Shape) -> Result<f32, DriverError> {
    let Gpu { device, slots: [slot, _], .. } = &backend.launches.machine;
    // Only whole waves of rows.
    let waves = (launch.rows / shape.teams).clamp(1, IN_TURN);
    let whole = Launch { rows: waves * shape.teams, laid: Laid::from(shape), ..*launch };
    let least = |launch: &Launch| -> Result<f32, DriverError> {
        let times: Result<Vec<f32>, DriverError> =
            (0..ROUNDS).map(|_| device.time(slot, launch, &[(slot, whole)])).collect();
        Ok(times?.into_iter().fold(f32::INFINITY, f32::min))
    };
    Ok((least(&whole)? - least(&Launch { rows: 0, ..whole })?) / waves as f32)
}

fn spec(at: u64, (temperature, top_k, top_p): (f32, u32, f32)) -> RowSpec<'static> {
    let action = Action::Draw { uniform: uniform(17, at, Purpose::Sample) };
    RowSpec::plain(Filters { temperature, top_k, top_p, min_p: 0.0 }, action)
}
