//! llama.cpp's own samplers, through its C interface (`include/llama.h` of 0.5.0). They need no model.

use libloading::Library;
use std::ffi::{CStr, c_char, c_void};
use std::path::Path;

/// The version whose signatures these are.
const VERSION: &str = "0.5.0";

#[repr(C)]
#[derive(Clone, Copy)]
struct TokenData {
    id: i32,
    logit: f32,
    p: f32,
}

#[repr(C)]
struct TokenDataArray {
    data: *mut TokenData,
    size: usize,
    selected: i64,
    sorted: bool,
}

#[repr(C)]
struct ChainParams {
    no_perf: bool,
}

type Sampler = *mut c_void;

/// A sampler, with the arguments of its `llama_sampler_init_` function.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    Greedy,
    Dist,
    TopK(i32),
    TopP(f32),
    MinP(f32),
    Typical(f32),
    TopNSigma(f32),
    Temperature(f32),
    /// The temperature in the middle, and the range around it.
    DynamicTemperature(f32, f32),
    /// The threshold. XTC is applied at every position.
    Xtc(f32),
    /// The surprise to aim at. This sampler draws the token.
    MirostatV1(f32),
    MirostatV2(f32),
    /// The target. This sampler draws the token.
    AdaptiveP(f32),
    /// The number of last tokens, and the repetition, frequency and presence penalties.
    Penalties(i32, [f32; 3]),
}

/// The library.
pub(crate) struct Llama(Library);

impl Llama {
    pub(crate) fn open(path: &Path) -> Result<Self, String> {
        // SAFETY: what the library does when it is loaded is its own.
        let library = unsafe { Library::new(path) }.map_err(|error| format!("{}: {error}", path.display()))?;
        let llama = Self(library);
        // SAFETY: that is the function's type, and its string is static.
        let version =
            unsafe { CStr::from_ptr(llama.symbol::<unsafe extern "C" fn() -> *const c_char>("llama_version")()) };
        match version.to_string_lossy().split('-').next() {
            Some(VERSION) => Ok(llama),
            other => {
                Err(format!("{} is llama.cpp {other:?}; the bench calls the functions of {VERSION}", path.display()))
            }
        }
    }

    /// # Safety
    /// `T` is the type of what has this name.
    unsafe fn symbol<T: Copy>(&self, name: &str) -> T {
        // SAFETY: as said.
        *unsafe { self.0.get::<T>(name) }.unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// A chain of these steps, in order, that has seen `history`.
    pub(crate) fn chain(&self, vocab: usize, steps: &[Step], history: &[i32]) -> Chain<'_> {
        // SAFETY: the types are those of llama.h.
        let chain = unsafe {
            let init: unsafe extern "C" fn(ChainParams) -> Sampler = self.symbol("llama_sampler_chain_init");
            let add: unsafe extern "C" fn(Sampler, Sampler) = self.symbol("llama_sampler_chain_add");
            let accept: unsafe extern "C" fn(Sampler, i32) = self.symbol("llama_sampler_accept");
            let chain = init(ChainParams { no_perf: true });
            steps.iter().for_each(|step| add(chain, self.sampler(step, vocab as i32)));
            history.iter().for_each(|&token| accept(chain, token));
            chain
        };
        Chain { llama: self, chain, tokens: Vec::with_capacity(vocab) }
    }

    /// # Safety
    /// Only what the types of llama.h ask for.
    unsafe fn sampler(&self, step: &Step, vocab: i32) -> Sampler {
        const SEED: u32 = 5;
        macro_rules! init {
            ($name:literal, $($value:expr => $type:ty),*) => {
                // SAFETY: the types are those of llama.h.
                unsafe {
                    let init: unsafe extern "C" fn($($type),*) -> Sampler =
                        self.symbol(concat!("llama_sampler_init_", $name));
                    init($($value),*)
                }
            };
        }
        match *step {
            Step::Greedy => init!("greedy",),
            Step::Dist => init!("dist", SEED => u32),
            Step::TopK(k) => init!("top_k", k => i32),
            Step::TopP(p) => init!("top_p", p => f32, 1 => usize),
            Step::MinP(p) => init!("min_p", p => f32, 1 => usize),
            Step::Typical(p) => init!("typical", p => f32, 1 => usize),
            Step::TopNSigma(n) => init!("top_n_sigma", n => f32),
            Step::Temperature(t) => init!("temp", t => f32),
            Step::DynamicTemperature(t, range) => init!("temp_ext", t => f32, range => f32, 1.0 => f32),
            Step::Xtc(threshold) => init!("xtc", 1.0 => f32, threshold => f32, 1 => usize, SEED => u32),
            Step::MirostatV1(tau) => init!("mirostat", vocab => i32, SEED => u32, tau => f32, 0.1 => f32, 100 => i32),
            Step::MirostatV2(tau) => init!("mirostat_v2", SEED => u32, tau => f32, 0.1 => f32),
            Step::AdaptiveP(target) => init!("adaptive_p", target => f32, 0.9 => f32, SEED => u32),
            Step::Penalties(last, [repeat, frequency, presence]) => {
                init!("penalties", vocab => i32, last => i32, repeat => f32, frequency => f32, presence => f32)
            }
        }
    }
}

/// A chain of samplers, and the list of candidates that it works on.
pub(crate) struct Chain<'a> {
    llama: &'a Llama,
    chain: Sampler,
    tokens: Vec<TokenData>,
}

impl Chain<'_> {
    /// Samples a row as `llama_sampler_sample` does: a list of all tokens with their logits goes through the chain.
    /// Returns the token.
    pub(crate) fn sample(&mut self, row: &[u8]) -> i32 {
        self.tokens.clear();
        let logits = row.chunks_exact(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]]));
        self.tokens.extend((0..).zip(logits).map(|(id, logit)| TokenData { id, logit, p: 0.0 }));
        let (data, size) = (self.tokens.as_mut_ptr(), self.tokens.len());
        let mut array = TokenDataArray { data, size, selected: -1, sorted: false };
        // SAFETY: the list lives as long as the call, and what is left of it is never longer.
        unsafe {
            let apply: unsafe extern "C" fn(Sampler, *mut TokenDataArray) = self.llama.symbol("llama_sampler_apply");
            apply(self.chain, &raw mut array);
            (*array.data.add(usize::try_from(array.selected).expect("a chain ends with what draws"))).id
        }
    }
}

impl Drop for Chain<'_> {
    fn drop(&mut self) {
        // SAFETY: made by the same library, and not used again. It frees its samplers.
        unsafe {
            let free: unsafe extern "C" fn(Sampler) = self.llama.symbol("llama_sampler_free");
            free(self.chain);
        }
    }
}
