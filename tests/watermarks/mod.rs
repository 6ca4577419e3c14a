//! Watermarks: unmarked text is not found, marked text is, and the schemes that promise it do not make text worse.
//!
//! Seeds and keys are fixed, so a run is repeatable. Each test says how often it would raise a false alarm with random ones.

mod detection;
mod quality;
mod texts;
mod wire;
