//! What in `deploy/` must agree with the rest, as far as plain reading shows; `scripts/check-deploy` renders it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn text(path: &str) -> String {
    fs::read_to_string(project(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Name → content of the files of a directory that end so; empty where there is no directory.
fn files(directory: &str, ending: &str) -> BTreeMap<String, String> {
    let Ok(entries) = fs::read_dir(project(directory)) else { return BTreeMap::new() };
    let entries = entries.map(|entry| entry.expect("readable").path());
    let name = |path: &Path| path.file_name().expect("named").to_string_lossy().into_owned();
    entries
        .filter(|path| path.is_file() && name(path).ends_with(ending))
        .map(|path| (name(&path), fs::read_to_string(&path).expect("text")))
        .collect()
}

#[test]
fn the_charts_copies_are_what_they_are_copies_of() {
    for (original, copy, ending) in [
        ("deploy/rules", "deploy/helm/podmeter/files", "podmeter.rules.yaml"),
        ("dashboards", "deploy/helm/podmeter/files/dashboards", ".json"),
    ] {
        let (originals, copies) = (files(original, ending), files(copy, ending));
        let names = |files: &BTreeMap<String, String>| files.keys().cloned().collect::<Vec<_>>();
        assert_eq!(
            names(&copies),
            names(&originals),
            "{copy} and {original}: run deploy/sync and commit what it writes"
        );
        for (name, content) in originals {
            assert!(
                copies[&name] == content,
                "{copy}/{name} is an old copy: run deploy/sync and commit what it writes"
            );
        }
    }
}

#[test]
fn the_versions_agree() {
    let version = env!("CARGO_PKG_VERSION");
    let chart = text("deploy/helm/podmeter/Chart.yaml");
    assert!(chart.contains(&format!("\nversion: {version}\n")), "Chart.yaml: version is not {version}");
    assert!(chart.contains(&format!("\nappVersion: \"{version}\"\n")), "Chart.yaml: appVersion is not {version}");
    let quota = text("deploy/kustomize/overlays/gke-plugin/resourcequota.yaml");
    assert!(quota.contains(&format!("app.kubernetes.io/version: \"{version}\"")), "resourcequota.yaml: not {version}");

    let toolchain = text("rust-toolchain.toml");
    let channel = toolchain.split('"').nth(1).expect("a channel");
    let dockerfile = text("deploy/image/Dockerfile");
    for line in [format!("FROM rust:{channel}-"), format!("RUSTUP_TOOLCHAIN={channel}\n")] {
        assert!(dockerfile.contains(&line), "deploy/image/Dockerfile has no {line:?}");
    }
}
