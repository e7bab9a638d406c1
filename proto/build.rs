//! Generates the messages and services of `proto/forebay/v1`.

fn main() -> std::io::Result<()> {
    let out = std::path::PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    tonic_prost_build::configure()
        .file_descriptor_set_path(out.join("forebay.bin"))
        .bytes(".")
        .compile_protos(&["proto/forebay/v1/cache.proto", "proto/forebay/v1/peer.proto"], &["proto"])
}
