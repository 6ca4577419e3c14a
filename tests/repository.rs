//! Rules for the files of this repository: which code may use what, the targets that pages name, and the scripts for a machine with a GPU.

#![allow(clippy::unwrap_used)] // A test may stop at the first surprise.

mod documentation;
#[cfg(target_os = "linux")]
mod gpu_check;
mod imports;
