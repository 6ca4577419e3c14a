//! Answers on the way out: cut into pieces (`outlet`), watched (`unread`, and `deliver` for stateless calls), and ended
//! when the server stops (`until`). `calls` counts the calls that are still to get answers.

pub(super) mod calls;
pub(super) mod deliver;
pub(super) mod outlet;
pub(super) mod unread;
pub(super) mod until;
