//! Answers on the way out: in pieces (`outlet`), watched (`unread`, and `deliver` for those of stateless calls), until the server
//! ends (`until`); `calls` knows who is still to get some.

pub(super) mod calls;
pub(super) mod deliver;
pub(super) mod outlet;
pub(super) mod unread;
pub(super) mod until;
