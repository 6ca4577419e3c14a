#![allow(warnings)]
#[path = "../benches/support/rows.rs"]
mod rows;
use croupier::backend::cpu::*;
use croupier::backend::*;
use croupier::sampling::adjust::*;
use croupier::sampling::logits::*;
use croupier::sampling::row::*;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let shape = if a[1] == "flat" { rows::Shape::Flat } else { rows::Shape::Peaked };
    let k: u32 = a[2].parse().unwrap();
    let p: f32 = a[3].parse().unwrap();
    let m: f32 = a[4].parse().unwrap();
    let full = a[5] == "full";
    let n: usize = a[6].parse().unwrap();
    let b: Vec<Vec<u8>> = (0..8).map(|i| Dtype::F32.encode(&rows::row(shape, 128256, i))).collect();
    let mut be = CpuBackend::new(1);
    let adj: Vec<TokenAdjust> = (0..64)
        .map(|i| TokenAdjust { token: i * 2004 + i * 7 % 50, flags: 2, bias: 0.0, output_count: i % 3 })
        .collect();
    for i in 0..n {
        let job = RowJob {
            logits: Logits::new(Dtype::F32, &b[i % 8]),
            spec: RowSpec {
                filters: Filters { temperature: 0.8, top_k: k, top_p: p, min_p: m },
                penalties: if full {
                    Penalties { repetition: 1.1, frequency: 0.1, presence: 0.1 }
                } else {
                    Penalties::OFF
                },
                adjusts: if full { &adj } else { &[] },
                banned: &[],
                allowed: None,
                action: Action::Draw { uniform: (i as u64).wrapping_mul(0x9E3779B97F4A7C15) },
                logprobs: if full {
                    Some(LogprobsSpec { top_n: 20, mode: LogprobsMode::Raw, tokens: &[] })
                } else {
                    None
                },
            },
        };
        be.run(&[job]);
    }
}
