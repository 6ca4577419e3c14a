//! Calls and their messages on the way in: `receive` lets a call in, checks its `headers` and watches its messages with
//! `incoming`; `deadline` is the time that the client gives a call.

pub(super) mod deadline;
mod headers;
pub(super) mod incoming;
pub(super) mod receive;
