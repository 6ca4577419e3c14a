//! Speculative decoding over real sockets: draft and verify work, what they report, and what they refuse.
//! (`tests/speculative` proves the rules themselves.)

mod calibration;
mod metrics;
mod mistakes;
mod proposals;
mod rounds;
mod shifts;
mod siblings;
mod texts;
mod vocabulary;
