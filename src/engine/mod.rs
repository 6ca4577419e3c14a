//! Placeholder of the engine.

use crate::backend::Backend;
use crate::limits::Limits;
use crate::metrics::Metrics;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

/// Keeps the engine alive.
#[derive(Debug, Clone)]
pub struct Handle {
    _alive: mpsc::Sender<()>,
}

/// Drives a backend.
#[derive(Debug)]
pub struct Engine;

impl Engine {
    /// Starts the engine's thread, which ends when every handle is dropped.
    #[must_use]
    pub fn start(backend: Box<dyn Backend>, _limits: Arc<Limits>, _metrics: Metrics) -> (Handle, JoinHandle<()>) {
        let (sender, receiver) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let _backend = backend;
            while receiver.recv().is_ok() {}
        });
        (Handle { _alive: sender }, thread)
    }
}
