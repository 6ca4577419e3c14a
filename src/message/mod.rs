//! Requests on the wire: the memory they keep, a check of each before it is decoded, and the codec that leaves both to
//! its caller.

mod buffers;
pub(crate) mod codec;
pub(crate) mod look;
mod shape;
