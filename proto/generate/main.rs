//! Writes `proto/generated`, the Rust types and gRPC services of the protocols beside it: `cargo run --package generate-proto`.
//! They are committed, so that no build of podmeter compiles a protobuf compiler; `scripts/check` compares them.

use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let proto = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let files = [
        "podresources/v1.proto",
        "deviceplugin/v1beta1.proto",
        "pods/v1alpha1.proto",
        "core/v1.proto",
        "prometheus/metrics.proto",
    ];
    let descriptors = protox::compile(files, [&proto])?;
    // BTreeMap, so that the same pod always has the same encoding.
    tonic_prost_build::configure().btree_map(".core.v1").out_dir(proto.join("generated")).compile_fds(descriptors)?;
    Ok(())
}
