//! The host's side of the CUDA backend, from the driver's calls to the exit code: real server processes on a driver without
//! a GPU (tests/cuda_driver), which runs the kernels in the emulator.

#![cfg(all(target_os = "linux", target_pointer_width = "64"))]
#![allow(clippy::unwrap_used, unreachable_pub)]

#[path = "../support/emulator.rs"]
mod build;
mod choice;
mod driver;
mod faults;
mod server;
#[path = "../support/mod.rs"]
mod support;
mod teams;
mod timing;
mod tokens;
