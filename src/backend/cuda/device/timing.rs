//! Measures how long launches and copies take.

use super::{Device, Slot};
use crate::backend::cuda::lend::Room;
use crate::backend::cuda::machine::Launch;
use crate::backend::cuda::wait::wait;
use cudarc::driver::{DriverError, result, sys};

impl Device {
    /// Runs the kernel on inputs that are already on the device, and returns its time in microseconds. The launches in
    /// `before` run first, in the same stream. While the device runs them, the launch and its events are queued, so
    /// that the host's time is not measured; unless queueing takes longer than `before` takes to run.
    pub(in crate::backend::cuda) fn time(
        &self,
        slot: &Slot,
        launch: &Launch,
        before: &[(&Slot, Launch)],
    ) -> Result<f32, DriverError> {
        let before = || before.iter().try_for_each(|(other, launch)| self.launch_on(slot.stream, other, launch));
        timed(slot.stream, before, || self.launch(slot, launch))
    }

    /// The same in a graph, where a launch costs the host nothing: the microseconds of each of so many consecutive
    /// launches, in each of so many rounds. The same graph runs before each round, so that the device is busy while the
    /// round is queued.
    pub(in crate::backend::cuda) fn time_in_graph(
        &self,
        slot: &Slot,
        launch: &Launch,
        launches: usize,
        rounds: usize,
    ) -> Result<Vec<f32>, DriverError> {
        let stream = slot.stream;
        let graph = captured(stream, || (0..launches).try_for_each(|_| self.launch(slot, launch)))?;
        let no_flags = sys::CUgraphInstantiate_flags_enum(0);
        // SAFETY: graph and stream are live; the graph is destroyed once, and what was made from it outlives it.
        let executable = unsafe {
            let executable = result::graph::instantiate(graph, no_flags);
            result::graph::destroy(graph)?;
            executable?
        };
        // SAFETY: executable and stream are live.
        let run = || unsafe { result::graph::launch(executable, stream) };
        let round = || timed(stream, run, run);
        let times: Result<Vec<f32>, DriverError> = (0..rounds).map(|_| Ok(round()? / launches as f32)).collect();
        // SAFETY: it is destroyed once, and its last launch is over.
        unsafe { result::graph::exec_destroy(executable)? };
        times
    }

    /// Copies half of some memory to the other half, after the same copy, and returns the time in microseconds and the
    /// bytes read and written.
    pub(in crate::backend::cuda) fn time_copy(&self, slot: &Slot, memory: &Room) -> Result<(f32, usize), DriverError> {
        let half = memory.len() / 2;
        let copy = || memory.copy_half(slot.stream);
        Ok((timed(slot.stream, copy, copy)?, 2 * half))
    }
}

/// An event of the device, destroyed when dropped.
struct Event(sys::CUevent);

impl Event {
    fn new() -> Result<Self, DriverError> {
        result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).map(Self)
    }

    fn record(&self, stream: sys::CUstream) -> Result<(), DriverError> {
        // SAFETY: event and stream are live.
        unsafe { result::event::record(self.0, stream) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: it is destroyed once. If that fails, the device is at fault, and the next call says so.
        let _ = unsafe { result::event::destroy(self.0) };
    }
}

/// The microseconds between two events around some work, after other work. The events are created before anything is
/// queued, so that the device does not idle meanwhile.
fn timed(
    stream: sys::CUstream,
    before: impl FnOnce() -> Result<(), DriverError>,
    work: impl FnOnce() -> Result<(), DriverError>,
) -> Result<f32, DriverError> {
    let (start, end) = (Event::new()?, Event::new()?);
    before()?;
    start.record(stream)?;
    work()?;
    end.record(stream)?;
    wait(stream)?;
    // SAFETY: both events are live, and were recorded.
    Ok(unsafe { result::event::elapsed(start.0, end.0)? } * 1e3)
}

/// Captures the work that `ask` gives to a stream as a graph.
fn captured(stream: sys::CUstream, ask: impl FnOnce() -> Result<(), DriverError>) -> Result<sys::CUgraph, DriverError> {
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // SAFETY: the stream is live, and its capture is ended whatever happens meanwhile: until then it takes no other work.
    unsafe {
        result::stream::begin_capture(stream, mode)?;
        let asked = ask();
        let graph = result::stream::end_capture(stream);
        // The first refusal is the cause.
        if let Err(error) = asked {
            graph.into_iter().for_each(|graph| _ = result::graph::destroy(graph));
            return Err(error);
        }
        graph
    }
}
