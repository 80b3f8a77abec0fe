//! Generates the gRPC types from `proto/` (no `protoc` needed); passes on the revision and the hashes of the
//! page's style and script.

use std::error::Error;
use std::process::Command;

use base64::Engine as _;
use sha2::Digest as _;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(
        [
            "podresources/v1.proto",
            "podresources/v1alpha1.proto",
            "deviceplugin/v1beta1.proto",
            "pods/v1alpha1.proto",
            "core/v1.proto",
        ],
        ["proto"],
    )?;
    // Maps in order: the same pod is always the same bytes.
    tonic_prost_build::configure().btree_map(".core.v1").compile_fds(descriptors)?;

    // The page allows this style and this script alone (Content-Security-Policy).
    for (name, path) in [("STYLE", "src/web/page/page.css"), ("SCRIPT", "src/web/page/page.js")] {
        println!("cargo::rerun-if-changed={path}");
        let digest = base64::engine::general_purpose::STANDARD.encode(sha2::Sha256::digest(std::fs::read(path)?));
        println!("cargo::rustc-env=PODMETER_{name}_SHA256={digest}");
    }

    // Asked, because in a linked work tree `.git` is a file; a path that is not there would have every build begin anew.
    for name in ["HEAD", "refs/heads"] {
        let path = first_line("git", &["rev-parse", "--git-path", name]);
        if std::fs::exists(&path)? {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    // An image build has no git: whoever starts it may say what it builds.
    println!("cargo::rerun-if-env-changed=PODMETER_REVISION");
    let told = std::env::var("PODMETER_REVISION").ok().filter(|revision| !revision.is_empty());
    let revision = told.unwrap_or_else(|| first_line("git", &["rev-parse", "--short=12", "HEAD"]));
    println!("cargo::rustc-env=PODMETER_BUILD_REVISION={revision}");
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let version = first_line(&rustc, &["--version"]);
    println!("cargo::rustc-env=PODMETER_BUILD_RUSTC={}", version.split(' ').nth(1).unwrap_or("unknown"));
    Ok(())
}

/// A source archive has no git: the revision is then `unknown`, not an error.
#[allow(clippy::disallowed_methods, reason = "a build script is not the agent")]
fn first_line(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().ok().filter(|output| output.status.success());
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    text.as_deref().and_then(|text| text.lines().next()).unwrap_or("unknown").to_owned()
}
