//! Compiles `proto/` to Rust types and gRPC services, and sets the revision and the compiler version as environment variables of
//! the build.

use std::error::Error;
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    compile_protocols()?;
    // Given by builds without git, such as an image build. A debug build names no revision: it would have to be built again
    // after each commit.
    println!("cargo::rerun-if-env-changed=PODMETER_REVISION");
    let given = std::env::var("PODMETER_REVISION").ok().filter(|revision| !revision.is_empty());
    let debug = std::env::var("PROFILE").is_ok_and(|profile| profile == "debug");
    let revision = match given {
        Some(revision) => revision,
        None if debug => "debug-build".to_owned(),
        None => head_revision()?,
    };
    println!("cargo::rustc-env=PODMETER_BUILD_REVISION={revision}");
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let version = first_line(&rustc, &["--version"]);
    println!("cargo::rustc-env=PODMETER_BUILD_RUSTC={}", version.split(' ').nth(1).unwrap_or("unknown"));
    Ok(())
}

/// In `OUT_DIR`, a file per protobuf package.
fn compile_protocols() -> Result<(), Box<dyn Error>> {
    // Without it cargo would watch only what this script prints below.
    println!("cargo::rerun-if-changed=proto");
    let files = ["podresources/v1.proto", "deviceplugin/v1beta1.proto", "pods/v1alpha1.proto", "core/v1.proto"];
    let descriptors = protox::compile(files, ["proto"])?;
    // BTreeMap, so that the same pod always has the same encoding.
    tonic_prost_build::configure().btree_map(".core.v1").compile_fds(descriptors)?;
    Ok(())
}

/// The commit that is checked out, and a build again when another one is.
fn head_revision() -> Result<String, Box<dyn Error>> {
    // git resolves the path, because `.git` is a file in a linked work tree. A path that does not exist would rebuild every time.
    for name in ["HEAD", "refs/heads"] {
        let path = first_line("git", &["rev-parse", "--git-path", name]);
        if std::fs::exists(&path)? {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    Ok(first_line("git", &["rev-parse", "--short=12", "HEAD"]))
}

/// The first line of a program's output, or `unknown` where it fails: a source archive has no git.
#[allow(clippy::disallowed_methods, reason = "a build script is not the agent")]
fn first_line(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().ok().filter(|output| output.status.success());
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    text.as_deref().and_then(|text| text.lines().next()).unwrap_or("unknown").to_owned()
}
