//! Marks: text without one is not found, text with one is, and text is none the worse for those that say so.
//!
//! Seeds and keys are fixed, so a run is repeatable; each test says how often it would raise a false alarm had they been random.

mod detection;
mod quality;
mod texts;
mod wire;
