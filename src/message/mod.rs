//! Requests on the wire: what they hold on to, a look at each before it is decoded, and the codec that leaves both to their reader.

mod buffers;
pub(crate) mod codec;
pub(crate) mod look;
mod shape;
