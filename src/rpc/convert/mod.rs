//! Translates between wire and domain: requests are checked and turned into domain types, results into replies. Code
//! past this module sees no protobuf types and need not check anything again.

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
