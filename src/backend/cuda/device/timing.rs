//! What launches and copies take.

use super::{Device, Slot};
use crate::backend::cuda::lend::Room;
use crate::backend::cuda::machine::Launch;
use crate::backend::cuda::wait::wait;
use cudarc::driver::{DriverError, result, sys};

impl Device {
    /// Runs the kernel on inputs that are on the device already, and gives its time in microseconds. What `before` names runs
    /// first, in the same stream: while the device is at it, the launch and what measures it are queued, so no time of the
    /// host's is measured, unless that takes longer to queue than `before` takes to run.
    pub(in crate::backend::cuda) fn time(
        &self,
        slot: &Slot,
        launch: &Launch,
        before: &[(&Slot, Launch)],
    ) -> Result<f32, DriverError> {
        let before = || before.iter().try_for_each(|(other, launch)| self.launch_on(slot.stream, other, launch));
        timed(slot.stream, before, || self.launch(slot, launch))
    }

    /// The same in a graph, where a launch costs the host nothing: microseconds of each of so many launches, one behind the
    /// other, in each of so many rounds. The same graph runs before each, so that the device is busy while it is queued.
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
        // SAFETY: graph and stream are live; the graph is destroyed once, which what was made of it outlives.
        let executable = unsafe {
            let executable = result::graph::instantiate(graph, no_flags);
            result::graph::destroy(graph)?;
            executable?
        };
        // SAFETY: as above.
        let run = || unsafe { result::graph::launch(executable, stream) };
        let round = || timed(stream, run, run);
        let times: Result<Vec<f32>, DriverError> = (0..rounds).map(|_| Ok(round()? / launches as f32)).collect();
        // SAFETY: it is destroyed once, and its last launch is over.
        unsafe { result::graph::exec_destroy(executable)? };
        times
    }

    /// Copies half of some memory onto the other half, behind the same copy, and gives the time in microseconds and the bytes read
    /// and written.
    pub(in crate::backend::cuda) fn time_copy(&self, slot: &Slot, memory: &Room) -> Result<(f32, usize), DriverError> {
        let half = memory.len() / 2;
        let copy = || memory.copy_half(slot.stream);
        Ok((timed(slot.stream, copy, copy)?, 2 * half))
    }
}

/// An event of the device, until it is dropped.
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
        // SAFETY: it is destroyed once. That it cannot be is the device's fault, which the next call says.
        let _ = unsafe { result::event::destroy(self.0) };
    }
}

/// Microseconds between two events around some work, behind other work. Events are made before anything is queued: the device
/// would be at nothing meanwhile.
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

/// What is asked of a stream meanwhile, as a graph.
fn captured(stream: sys::CUstream, ask: impl FnOnce() -> Result<(), DriverError>) -> Result<sys::CUgraph, DriverError> {
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // SAFETY: the stream is live, and its capture is ended whatever happens meanwhile: until then it takes no other work.
    unsafe {
        result::stream::begin_capture(stream, mode)?;
        let asked = ask();
        let graph = result::stream::end_capture(stream);
        // What was refused first is the cause.
        if let Err(error) = asked {
            graph.into_iter().for_each(|graph| _ = result::graph::destroy(graph));
            return Err(error);
        }
        graph
    }
}
