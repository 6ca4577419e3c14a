//! The host code of the CUDA backend, from the driver's calls to the exit code: real server processes on a driver without a GPU
//! (tests/cuda_driver), which runs the kernels in the emulator.

mod choice;
mod driver;
mod faults;
mod server;
mod teams;
mod timing;
mod tokens;
