//! Generates the messages and services from `proto/`, without needing `protoc`.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Asked when it runs: a build script may be run for another copy of the tree than the
    // one it was compiled in.
    let here = std::env::var("CARGO_MANIFEST_DIR")?;
    let root = Path::new(&here).join("../../proto");
    println!("cargo::rerun-if-changed={}", root.display());
    let files = [
        "cordum/agent/v1/buspacket.proto",
        "cordum/agent/v1/safety.proto",
        "airlock/v1/policy.proto",
        "cordum/agent/v1/output_policy.proto",
        "airlock/v1/output.proto",
        "etcd/rpc.proto",
    ];
    let fds = protox::compile(files.map(|f| root.join(f)), [&root])?;
    // Sorted maps, because signatures and hashes need one encoding per message.
    tonic_prost_build::configure()
        .btree_map(".")
        .bytes(".")
        .compile_fds(fds)?;
    Ok(())
}
