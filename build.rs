//! Generates the wire types and the file descriptor set for reflection, without protoc.

use prost::Message;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const PROTO: &str = "proto/croupier/v1/sampler.proto";
    println!("cargo:rerun-if-changed={PROTO}");
    let descriptors = protox::compile([PROTO], ["proto"])?;
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("croupier.v1.bin"), descriptors.encode_to_vec())?;
    // `Bytes` for logits: a slice of the received message instead of a second copy.
    tonic_prost_build::configure()
        .bytes(".croupier.v1.InlineLogits")
        .bytes(".croupier.v1.DenseDraft")
        // Looks at each request before it is decoded; see there.
        .codec_path("crate::rpc::codec::Codec")
        .compile_fds(descriptors)?;
    Ok(())
}
