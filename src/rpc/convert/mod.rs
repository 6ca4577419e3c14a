//! Where wire and domain meet: requests are checked and turned into domain types, results into replies.
//! Nothing past this module sees a protobuf type, and nothing past it needs to check one again.

pub(super) mod config;
pub(super) mod copies;
mod history;
pub(super) mod opening;
pub(super) mod params;
pub(super) mod reply;
mod report;
mod rules_cache;
mod samplers;
pub(super) mod shards;
pub(super) mod step;
mod top_n;
mod watermark;
