//! How the allocator treats the buffers of large messages.

/// Allocations up to this size stay in the heap when freed, to be used again. This is above the usual message of about
/// 1 MB, so that the common case never goes back to the system. A step of several messages reuses the memory of the
/// step before.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const KEEP_UP_TO: i32 = 32 << 20;
/// Free memory at the heap's end beyond this is given back to the system.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const KEEP_FREE: i32 = 256 << 20;

/// Heaps for each processor, counting at least two processors. By default glibc has eight for each processor of the
/// whole machine, whatever part of it this process may use, and memory freed in one heap is of no use to threads of
/// another. A server that compiled some thousand grammars, each on a thread of its own, kept hundreds of megabytes.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const HEAPS: usize = 2;

/// Keeps freed message buffers for the next message. By default glibc maps each buffer anew and unmaps it when it is
/// freed, and the kernel clears every page in between. That is a tenth of the processor time of a busy server. On other
/// systems this does nothing.
pub fn keep_large_buffers() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    let heaps = std::thread::available_parallelism().map_or(1, usize::from).max(2).saturating_mul(HEAPS) as i32;
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: mallopt only stores numbers; it is called before any other thread is started.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, KEEP_UP_TO);
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEEP_FREE);
        libc::mallopt(libc::M_ARENA_MAX, heaps);
    }
}
