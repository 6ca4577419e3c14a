//! How to get data from memory fastest on this processor. The processor's maker decides, since nothing else tells.
//! Measured with rows of 513 KB, docs/performance-notes.md.

use std::sync::atomic::{AtomicU8, Ordering};

const UNKNOWN: u8 = 0;
const YES: u8 = 1;
const NO: u8 = 2;

static HINTS: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Whether prefetch hints make reading faster. On Intel's processors they do, by a third. AMD's follow eight streams by
/// themselves, which costs nothing in caches either, and take half as long again with hints.
#[inline(always)]
pub(super) fn wants_hints() -> bool {
    match HINTS.load(Ordering::Relaxed) {
        UNKNOWN => look(),
        known => known == YES,
    }
}

#[cold]
fn look() -> bool {
    let wants = !is_of_amd();
    HINTS.store(if wants { YES } else { NO }, Ordering::Relaxed);
    wants
}

/// Whether the processor is AMD's, or derived from AMD's.
#[cfg(target_arch = "x86_64")]
pub(super) fn is_of_amd() -> bool {
    // SAFETY: every x86-64 processor has the instruction, and it has its maker's name there.
    #[allow(unused_unsafe)] // It is safe from Rust 1.94 on.
    let maker = unsafe { std::arch::x86_64::__cpuid(0) };
    let name = [maker.ebx, maker.edx, maker.ecx].map(u32::to_le_bytes).concat();
    [b"AuthenticAMD", b"HygonGenuine"].contains(&name.as_slice().try_into().unwrap_or(&[0; 12]))
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn is_of_amd() -> bool {
    false
}
