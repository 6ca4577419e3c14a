//! Generates the wire types and the file descriptor set for reflection, without protoc.

use prost::Message;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const PROTO: &str = "proto/croupier/v1/sampler.proto";
    println!("cargo:rerun-if-changed={PROTO}");
    let descriptors = protox::compile([PROTO], ["proto"])?;
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("croupier.v1.bin"), descriptors.encode_to_vec())?;
    // With `Bytes`, logits and masks are slices of the received message instead of copies.
    tonic_prost_build::configure()
        .build_server(false)
        .bytes(".croupier.v1.InlineLogits")
        .bytes(".croupier.v1.DenseDraft")
        .bytes(".croupier.v1.Work")
        .bytes(".croupier.v1.SampleRow")
        .compile_fds(descriptors.clone())?;
    // The server receives requests as raw bytes and inspects them before it decodes them; see `src/message`.
    let server = out.join("server");
    std::fs::create_dir_all(&server)?;
    let mut build = tonic_prost_build::configure().build_client(false).codec_path("crate::message::codec::Codec");
    for request in ["DecodeRequest", "AttachRequest", "SampleRequest", "GetServerInfoRequest"] {
        build = build.extern_path(format!(".croupier.v1.{request}"), format!("crate::message::codec::Raw{request}"));
    }
    build.extern_path(".croupier.v1", "crate::proto").out_dir(server).compile_fds(descriptors)?;
    Ok(())
}
