//! What holds of the files of this repository: who may use what, what the pages point at, and the scripts for a machine with a GPU.

#![allow(clippy::unwrap_used)] // A test may stop at the first surprise.

mod documentation;
#[cfg(target_os = "linux")]
mod gpu_check;
mod imports;
