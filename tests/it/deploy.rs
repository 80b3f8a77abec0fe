//! What in `deploy/` must agree with the rest, as far as plain reading shows; `scripts/check-deploy` renders it.

use std::fs;
use std::path::Path;

fn text(path: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(file).unwrap_or_else(|error| panic!("{path}: {error}"))
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

/// Helm reads no file outside a chart, and prints a warning for each symbolic link in one.
#[test]
fn the_charts_copies_of_rules_and_dashboards_are_current_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dashboards = fs::read_dir(root.join("dashboards")).unwrap().map(|entry| entry.unwrap().path());
    let dashboards = dashboards.filter(|file| file.extension().is_some_and(|extension| extension == "json"));
    let originals =
        dashboards.map(|file| (file.clone(), format!("dashboards/{}", file.file_name().unwrap().display())));
    let rules =
        ["podmeter.rules.yaml", "cost.rules.yaml"].map(|name| (root.join("deploy/rules").join(name), name.to_owned()));
    for (original, copy) in originals.chain(rules) {
        let copy = root.join("deploy/helm/podmeter/files").join(copy);
        assert!(fs::symlink_metadata(&copy).is_ok_and(|file| file.is_file()), "{}: no file", copy.display());
        assert!(fs::read(&original).unwrap() == fs::read(&copy).unwrap(), "{}: run deploy/sync", copy.display());
    }
}
