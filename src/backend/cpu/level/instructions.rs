//! Which instructions each level is compiled with. This is their only list, so a pass is compiled with exactly those
//! that the CPU was asked for.

/// `levels!(compile)` calls `compile!` for each level, with a name for its passes, a name for their module, the type
/// that they are compiled for, and its instructions. `levels!(avx2 then ...)` calls `then!` for one level, with its
/// instructions after the rest, each after a comma.
macro_rules! levels {
    ($compile:ident) => {
        #[cfg(target_arch = "x86_64")]
        levels! { avx512 $compile AVX512, avx512, Avx512<false> }
        #[cfg(target_arch = "x86_64")]
        levels! { avx512 $compile AVX512_AMD, avx512_amd, Avx512<true> }
        #[cfg(target_arch = "x86_64")]
        levels! { avx2 $compile AVX2, avx2, Avx2 }
        $compile! { PORTABLE, portable, Portable }
    };
    (avx512 $then:ident $($given:tt)*) => {
        levels! { avx2 $then $($given)*, "avx512f", "avx512bw", "avx512dq", "avx512vl" }
    };
    (avx2 $then:ident $($given:tt)*) => {
        $then! { $($given)*, "avx2", "fma", "f16c", "bmi1", "popcnt" }
    };
}

pub(in crate::backend::cpu) use levels;
