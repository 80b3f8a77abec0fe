//! The binary on files in a temporary directory.

use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

/// Runs in a directory, with this standard input.
#[allow(clippy::disallowed_methods, reason = "starts the binary")]
fn run_with(directory: &Path, arguments: &[&str], input: &[u8]) -> Ran {
    let mut child = Command::new(env!("CARGO_BIN_EXE_podmeter-migrate"))
        .args(arguments)
        .current_dir(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let _ = child.stdin.take().expect("a pipe").write_all(input);
    let output = child.wait_with_output().expect("ended");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    Ran { code: output.status.code().expect("no signal"), stdout: text(output.stdout), stderr: text(output.stderr) }
}

fn run(directory: &Path, arguments: &[&str]) -> Ran {
    run_with(directory, arguments, b"")
}

fn directory(files: &[(&str, &str)]) -> TempDir {
    let directory = TempDir::new().expect("a directory");
    for (name, text) in files {
        fs::write(directory.path().join(name), text).expect("written");
    }
    directory
}

fn read(directory: &TempDir, name: &str) -> String {
    fs::read_to_string(directory.path().join(name)).expect("readable")
}

/// Names of files, to find temporary ones that were left behind.
fn names(directory: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(directory.path()).expect("readable");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("readable").file_name().into_string().expect("UTF-8")).collect();
    names.sort();
    names
}

/// Rewrites one file with `--write`, and gives its text with the exit code and the report.
#[track_caller]
fn rewritten(arguments: &[&str], name: &str, text: &str) -> (String, Ran) {
    let directory = directory(&[(name, text)]);
    let ran = run(directory.path(), &[arguments, &["--write", name]].concat());
    assert_ne!(ran.code, 2, "{}", ran.stderr);
    (read(&directory, name), ran)
}

#[track_caller]
fn check(arguments: &[&str], name: &str, text: &str, expected: &str) {
    let (after, ran) = rewritten(arguments, name, text);
    assert_eq!(after, expected, "{}", ran.stdout);
    assert_eq!(ran.code, 0, "{}", ran.stdout);
}

const RULES: &str = r#"# GPU rules
groups:
- name: gpu   # a group
  rules:

  # hot GPUs
  - alert: GpuHot
    expr: |-
      # too hot
      max by (Hostname, gpu) (
        DCGM_FI_DEV_GPU_TEMP   # °C
      ) > 85
    for: 5m
    annotations:
      summary: 'GPU {{ $labels.gpu }} of {{ $labels.Hostname }} has {{ $value }} °C'
  - record: gpu:power
    expr: 'sum(DCGM_FI_DEV_POWER_USAGE{Hostname="a''b"})'
  - alert: GpuMemoryFull
    expr: >-
      DCGM_FI_DEV_FB_USED
      > 70000
  - alert: Other
    expr: up == 0
"#;

#[test]
fn a_diff_with_reasons_and_no_file_changed() {
    let directory = directory(&[("rules.yaml", RULES)]);
    let ran = run(directory.path(), &["--to", "4.9", "rules.yaml"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert_eq!(read(&directory, "rules.yaml"), RULES);
    let lines: Vec<&str> = ran.stdout.lines().collect();
    for expected in [
        "--- rules.yaml",
        "+++ rules.yaml",
        "-        DCGM_FI_DEV_GPU_TEMP   # °C",
        "+        DCGM_FI_DEV_GPU_TEMP_CELSIUS   # °C",
        "+      summary: 'GPU {{ $labels.gpu }} of {{ $labels.hostname }} has {{ $value }} °C'",
        "+    expr: 'sum(DCGM_FI_DEV_BOARD_POWER_WATTS{hostname=\"a''b\"})'",
        "+      DCGM_FI_DEV_FB_USED_BYTES / 1048576",
        "# rules.yaml:15: Hostname → hostname: the label of the rewritten query",
        "# 1 file, 3 expressions: 3 rewritten, 0 left, 0 unchanged",
    ] {
        assert!(lines.contains(&expected), "{expected}\n{}", ran.stdout);
    }
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with("# rules.yaml:11: DCGM_FI_DEV_GPU_TEMP → DCGM_FI_DEV_GPU_TEMP_CELSIUS: "))
    );
}

#[test]
fn the_other_generation_and_back_is_the_same_text() {
    let (new, _) = rewritten(&["--to", "4.9"], "rules.yaml", RULES);
    assert_ne!(new, RULES);
    check(&["--to", "4.8"], "rules.yaml", &new, RULES);
}

#[test]
fn nothing_is_written_where_nothing_changes() {
    let directory = directory(&[("rules.yaml", "groups:\n- rules:\n  - {record: a, expr: up}\n")]);
    let file = directory.path().join("rules.yaml");
    let before = fs::metadata(&file).expect("there").modified().expect("a time");
    fs::set_permissions(&file, Permissions::from_mode(0o444)).expect("changed");
    let ran = run(directory.path(), &["--to", "4.9", "--write", "rules.yaml"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "# 1 file, 0 expressions: 0 rewritten, 0 left, 0 unchanged\n"));
    assert_eq!(fs::metadata(&file).expect("there").modified().expect("a time"), before);
}

#[test]
fn objects_lists_and_embedded_documents() {
    let wrap = |rules: &str| {
        format!(
            "apiVersion: v1\nkind: List\nitems:\n- apiVersion: monitoring.coreos.com/v1\n  kind: PrometheusRule\n  spec:\n    groups:\n    \
             - rules:\n      - record: x\n        expr: {rules}\n---\napiVersion: apps/v1\nkind: Deployment\nspec: {{}}\n---\n\
             apiVersion: v1\nkind: ConfigMap\ndata:\n  a.yaml: |\n    groups:\n    - rules:\n      # comment\n      - expr: \"{rules}\"\n  \
             b.json: '{{\"panels\": [{{\"targets\": [{{\"expr\": \"{rules}\", \"legendFormat\": \"it''s\"}}]}}]}}'\n  c.txt: text\n"
        )
    };
    let (old, new) = (wrap("sum(DCGM_FI_DEV_GPU_TEMP)"), wrap("sum(DCGM_FI_DEV_GPU_TEMP_CELSIUS)"));
    check(&["--to", "4.9"], "all.yaml", &old, &new);
    let (_, ran) = rewritten(&["--to", "4.9"], "all.yaml", &old);
    for line in [10, 23, 24] {
        assert!(ran.stdout.contains(&format!("# all.yaml:{line}: DCGM_FI_DEV_GPU_TEMP → ")), "{line}: {}", ran.stdout);
    }
}

#[test]
fn grafana_operator_and_api_dashboards() {
    let dashboard = |name: &str| format!("{{\"panels\": [{{\"targets\": [{{\"expr\": \"{name}\"}}]}}]}}");
    let object = |name: &str| {
        format!(
            "apiVersion: grafana.integreatly.org/v1beta1\nkind: GrafanaDashboard\nspec:\n  json: >\n    {}\n",
            dashboard(name)
        )
    };
    let (old, new) = ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS");
    check(&["--to", "4.9"], "object.yaml", &object(old), &object(new));
    let wrapped = |name: &str| format!("{{\"dashboard\": {}, \"folderId\": 0}}", dashboard(name));
    check(&["--to", "4.9"], "api.json", &wrapped(old), &wrapped(new));
}

const DASHBOARD: &str = r#"{
  "schemaVersion": 39, "title": "GPUs",
  "templating": {"list": [
    {"type": "query", "name": "node", "definition": "label_values(DCGM_FI_DEV_GPU_TEMP, Hostname)",
     "query": {"query": "label_values(DCGM_FI_DEV_GPU_TEMP, Hostname)", "refId": "x"}},
    {"type": "query", "name": "gpu", "query": "label_values(DCGM_FI_DEV_GPU_TEMP{Hostname=~\"$node\"}, gpu)"},
    {"type": "query", "name": "hot", "query": "query_result(topk(5, DCGM_FI_DEV_GPU_TEMP))"},
    {"type": "datasource", "query": "prometheus"}
  ]},
  "annotations": {"list": [{"expr": "DCGM_FI_DEV_GPU_TEMP > 90", "titleFormat": "{{Hostname}}", "tagKeys": "Hostname,gpu"}]},
  "panels": [
    {"type": "row", "collapsed": true, "panels": [
      {"targets": [{"expr": "rate(DCGM_FI_DEV_GPU_TEMP{gpu=\"$gpu\"}[$__rate_interval])", "legendFormat": "{{ Hostname }}/{{gpu}}"}]}
    ]},
    {"datasource": {"type": "loki"}, "targets": [{"expr": "{app=\"x\"} |= `y`"}]},
    {"type": "table", "targets": [{"expr": "sum by (Hostname) (DCGM_FI_DEV_GPU_TEMP) \u003e 0"}],
     "transformations": [{"id": "organize", "options": {"renameByName": {"Hostname": "Node"}}}],
     "fieldConfig": {"overrides": [{"matcher": {"id": "byName", "options": "Hostname"}, "properties": [
       {"id": "links", "value": [{"url": "/d/x?var-node=${__data.fields.Hostname}"}]}]}]}}
  ]
}
"#;

#[test]
fn a_dashboard_keeps_all_else() {
    let new = DASHBOARD.replace("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS").replace("Hostname", "hostname");
    check(&["--to", "4.9"], "gpus.json", DASHBOARD, &new);
    check(&["--to", "4.8"], "gpus.json", &new, DASHBOARD);
}

#[test]
fn readers_of_a_recorded_series_follow_its_labels() {
    let rules = |label: &str, metric: &str| {
        format!(
            "groups:\n- rules:\n  - record: node:temp\n    expr: max by ({label}) ({metric})\n  - record: node:hot\n    expr: node:temp{{{label}=\"x\"}}\n"
        )
    };
    let alerts = |label: &str| {
        format!(
            "groups:\n- rules:\n  - alert: a\n    expr: node:hot > 1\n    annotations: {{a: '{{{{ $labels.{label} }}}}'}}\n  - alert: b\n    expr: other{{Hostname=\"x\"}} > 1\n"
        )
    };
    let directory =
        directory(&[("rules.yaml", &rules("Hostname", "DCGM_FI_DEV_GPU_TEMP")), ("alerts.yaml", &alerts("Hostname"))]);
    let ran = run(directory.path(), &["--to", "4.9", "--write", "alerts.yaml", "rules.yaml"]);
    assert_eq!(ran.code, 0, "{}", ran.stdout);
    assert_eq!(read(&directory, "rules.yaml"), rules("hostname", "DCGM_FI_DEV_GPU_TEMP_CELSIUS"));
    assert_eq!(read(&directory, "alerts.yaml"), alerts("hostname"));
    // A series that is recorded from others too, or under labels of its own, is not followed.
    let mixed = rules("Hostname", "DCGM_FI_DEV_GPU_TEMP").replace("(DCGM", "(up or DCGM");
    let set = rules("Hostname", "DCGM_FI_DEV_GPU_TEMP")
        .replace("  - record: node:hot", "    labels: {a: b}\n  - record: node:hot");
    for rules in [mixed, set] {
        let (after, ran) = rewritten(&["--to", "4.9"], "rules.yaml", &rules);
        assert_eq!(ran.code, 1, "{}", ran.stdout);
        assert!(ran.stdout.contains("left: Hostname: on dcgm-exporter's series it becomes `hostname`"), "{after}");
    }
}

#[test]
fn what_is_left_is_listed() {
    let rules = "groups:\n- rules:\n  - alert: a\n    expr: &util DCGM_FI_DEV_GPU_TEMP > 1\n  - alert: b\n    expr: *util\n  - alert: c\n    \
                 expr: sum(DCGM_FI_DEV_GPU_TEMP\n  - alert: d\n    expr: DCGM_FI_DEV_MADE_UP > 1\n    annotations:\n      \
                 text: '{{ query \"DCGM_FI_DEV_GPU_TEMP\" }}'\n";
    let (after, ran) = rewritten(&["--to", "4.9"], "rules.yaml", rules);
    assert_eq!((after.as_str(), ran.code), (rules, 1));
    for expected in [
        "# rules.yaml:4: left: DCGM_FI_DEV_GPU_TEMP: a value that aliases (*) of this file share",
        "# rules.yaml:8: left: DCGM_FI_DEV_GPU_TEMP: not PromQL: ",
        "# rules.yaml:10: left: DCGM_FI_DEV_MADE_UP: ",
        "# rules.yaml:12: left: DCGM_FI_DEV_GPU_TEMP: named in `text`, which is no query",
        "# 1 file, 2 expressions: 0 rewritten, 2 left, 0 unchanged; 2 other places left\n",
    ] {
        assert!(ran.stdout.contains(expected), "{expected}\n{}", ran.stdout);
    }
    let dashboard = r#"{"title": "DCGM_FI_DEV_GPU_TEMP", "panels": [{"libraryPanel": {"name": "Heat"}},
      {"datasource": {"type": "loki"}, "targets": [{"expr": "DCGM_FI_DEV_GPU_TEMP"}]}],
      "templating": {"list": [{"type": "query", "query": "metrics(DCGM_FI_DEV_GPU_TEMP)"},
        {"type": "adhoc", "filters": [{"key": "Hostname", "value": "a"}], "baseFilters": [{"key": "gpu", "value": "0"}]}]}}"#;
    let (after, ran) = rewritten(&["--to", "4.9"], "d.json", dashboard);
    assert_eq!((after.as_str(), ran.code), (dashboard, 1));
    for expected in [
        "# d.json:1: left: DCGM_FI_DEV_GPU_TEMP: named in `title`, which is no query",
        "# d.json:1: left: panel: the library panel `Heat`: its queries are not in this file",
        "# d.json:2: left: DCGM_FI_DEV_GPU_TEMP: a query of a data source that is not Prometheus",
        "# d.json:3: left: DCGM_FI_DEV_GPU_TEMP: named in `query`, which is no query",
        "# d.json:4: left: Hostname: it reads the label of all series; on dcgm-exporter's it becomes `hostname`",
        "1 expression: 0 rewritten, 1 left, 0 unchanged; 4 other places left\n",
    ] {
        assert!(ran.stdout.contains(expected), "{expected}\n{}", ran.stdout);
    }
}

#[test]
fn files_that_cannot_be_read_are_named_with_their_line() {
    for (name, text, message) in [
        ("a.yaml", &b"groups:\n- rules: [\n"[..], "a.yaml:2: not YAML: "),
        ("a.yaml", b"groups:\n  - name: {{ .Values.name }}\n", "a.yaml:2: a template ({{ … }}) in place of a value"),
        ("a.yaml", b"{{- range .Values.rules }}\ngroups: []\n{{- end }}\n", "a.yaml:1: a template"),
        ("a.json", b"{\n  \"panels\": [],\n}\n", "a.json:3: not JSON: key must be a string (column 1)"),
        ("a.json", b"{\"panels\": [", "a.json:1: not JSON: "),
        ("a.yaml", b"a: 1\nb: \xff\n", "a.yaml: not UTF-8"),
        ("a.yaml", b"a: 1\nb: \0\n", "a.yaml: a NUL byte"),
        ("a.yaml", b"", "a.yaml: empty"),
        ("a.yaml", b"# comment\n", "found nothing"),
        ("a.yaml", b"kind: Deployment\napiVersion: apps/v1\n", "found a Deployment object"),
        ("a.yaml", b"replicas: 1\nimage: x\n", "found a mapping with `replicas`, `image`"),
        ("a.yaml", b"- a\n", "found a sequence"),
        ("a.yaml", b"DCGM_FI_DEV_GPU_TEMP > 1\n", "found plain text"),
        (
            "a.yaml",
            b"apiVersion: v1\nkind: ConfigMap\ndata: {a.csv: 'DCGM_FI_DEV_GPU_UTIL, gauge'}\n",
            "found `a.csv` with something else",
        ),
        (
            "a.yaml",
            b"apiVersion: v1\nkind: ConfigMap\ndata:\n  a.json: |\n    {\"panels\":\n     [DCGM_]}\n",
            "a.yaml:6: not JSON: ",
        ),
        ("a.yaml", b"groups: []\ngroups: []\n", "a.yaml:2: the key `groups` stands twice"),
    ] {
        let directory = TempDir::new().expect("a directory");
        fs::write(directory.path().join(name), text).expect("written");
        let ran = run(directory.path(), &["--to", "4.9", "--write", name]);
        let shown = String::from_utf8_lossy(text).into_owned();
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{shown}");
        assert!(
            ran.stderr.starts_with("podmeter-migrate: a.") && ran.stderr.contains(message),
            "{shown}: {}",
            ran.stderr
        );
        assert_eq!(fs::read(directory.path().join(name)).expect("readable"), text);
    }
}

#[test]
fn deep_and_large_files_are_refused() {
    let deep =
        [format!("groups: {}", "[".repeat(100_000)), "[".repeat(100_000), format!("a: {}b", "- ".repeat(100_000))];
    for text in &deep {
        let directory = directory(&[("a.yaml", text)]);
        let ran = run(directory.path(), &["--to", "4.9", "a.yaml"]);
        assert_eq!(ran.code, 2);
        assert!(ran.stderr.contains("a.yaml:1: not "), "{}", ran.stderr);
    }
    let nested = |level: usize| format!("groups: {}{}", "[".repeat(level), "]".repeat(level));
    let directory = directory(&[("a.yaml", &nested(250))]);
    assert_eq!(run(directory.path(), &["--to", "4.9", "a.yaml"]).code, 0);
    fs::File::create(directory.path().join("large.yaml")).expect("created").set_len((64 << 20) + 1).expect("sparse");
    let ran = run(directory.path(), &["--to", "4.9", "large.yaml"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (2, "podmeter-migrate: large.yaml: larger than 64 MiB\n"));
}

#[test]
fn all_files_are_written_or_none() {
    let rules = "groups:\n- rules:\n  - expr: DCGM_FI_DEV_GPU_TEMP\n";
    let directory = directory(&[("good.yaml", rules), ("bad.yaml", "groups: ["), ("worse.json", "{")]);
    let ran = run(directory.path(), &["--to", "4.9", "--write", "good.yaml", "bad.yaml", "worse.json", "missing.yaml"]);
    assert_eq!(ran.code, 2);
    for message in ["bad.yaml:1: not YAML", "worse.json:1: not JSON", "missing.yaml: cannot be read: No such file"] {
        assert!(ran.stderr.contains(message), "{}", ran.stderr);
    }
    assert_eq!(read(&directory, "good.yaml"), rules);
    // The second cannot be replaced.
    fs::write(directory.path().join("locked.yaml"), rules).expect("written");
    fs::set_permissions(directory.path().join("locked.yaml"), Permissions::from_mode(0o444)).expect("changed");
    let ran = run(directory.path(), &["--to", "4.9", "--write", "good.yaml", "locked.yaml"]);
    assert_eq!(
        (ran.code, ran.stderr.as_str()),
        (2, "podmeter-migrate: locked.yaml: cannot be written: read-only, or not a regular file\n")
    );
    assert_eq!(read(&directory, "good.yaml"), rules);
    assert_eq!(names(&directory), ["bad.yaml", "good.yaml", "locked.yaml", "worse.json"]);
    let ran = run(directory.path(), &["--to", "4.9", "."]);
    assert!(
        ran.code == 2 && ran.stderr.contains(".: a directory: give its files, for example ./*.yaml"),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_link_stays_and_its_target_keeps_its_mode() {
    let directory = directory(&[("target.yaml", "groups:\n- rules:\n  - expr: DCGM_FI_DEV_GPU_TEMP\n")]);
    let target = directory.path().join("target.yaml");
    fs::set_permissions(&target, Permissions::from_mode(0o640)).expect("changed");
    symlink("target.yaml", directory.path().join("link.yaml")).expect("linked");
    // The same file twice is read once.
    let ran = run(directory.path(), &["--to", "4.9", "--write", "link.yaml", "target.yaml"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stdout.ends_with("# 1 file, 1 expression: 1 rewritten, 0 left, 0 unchanged\n"), "{}", ran.stdout);
    assert!(fs::symlink_metadata(directory.path().join("link.yaml")).expect("there").is_symlink());
    assert_eq!(fs::metadata(&target).expect("there").permissions().mode() & 0o777, 0o640);
    assert!(read(&directory, "target.yaml").contains("DCGM_FI_DEV_GPU_TEMP_CELSIUS"));
}

#[test]
fn standard_input_to_standard_output() {
    let directory = directory(&[]);
    let ran = run_with(directory.path(), &["--to", "4.9", "-"], b"groups:\n- rules:\n  - expr: DCGM_FI_DEV_GPU_TEMP\n");
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "groups:\n- rules:\n  - expr: DCGM_FI_DEV_GPU_TEMP_CELSIUS\n"));
    assert!(ran.stderr.contains("# standard input:3: DCGM_FI_DEV_GPU_TEMP → "), "{}", ran.stderr);
    let ran =
        run_with(directory.path(), &["--to", "4.9", "-"], b"sum by (gpu) (DCGM_FI_DEV_GPU_TEMP{gpu=\"0\"}) > 5\n");
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "sum by (gpu) (DCGM_FI_DEV_GPU_TEMP_CELSIUS{gpu=\"0\"}) > 5\n"));
    let selector = |name: &str| format!("{{__name__=\"{name}\"}}\n");
    let ran = run_with(directory.path(), &["--to", "4.9", "-"], selector("DCGM_FI_DEV_GPU_TEMP").as_bytes());
    assert_eq!((ran.code, ran.stdout), (0, selector("DCGM_FI_DEV_GPU_TEMP_CELSIUS")));
    for (input, message) in
        [("", "standard input: empty"), ("{\"DCGM_FI_DEV_GPU_TEMP\": [", "standard input:1: not JSON: ")]
    {
        let ran = run_with(directory.path(), &["--to", "4.9", "-"], input.as_bytes());
        assert!(ran.code == 2 && ran.stderr.contains(message), "{}", ran.stderr);
    }
    for arguments in [&["--to", "4.9", "-", "a.yaml"][..], &["--to", "4.9", "--write", "-"]] {
        assert_eq!(run(directory.path(), arguments).code, 2);
    }
}

/// As a public set of rules has it, for the targets of a DaemonSet's pods.
const SCRAPED: &str = "groups:\n- rules:\n  - alert: hot\n    expr: max by (kubernetes_node, gpu) (DCGM_FI_DEV_GPU_TEMP) > 90\n    annotations:\n      \
                       summary: 'GPU {{ $labels.gpu }} of {{ $labels.kubernetes_node }}'\n  - alert: down\n    expr: \
                       up{kubernetes_node=\"a\"} == 0\n  - record: own\n    expr: sum by (team) (DCGM_FI_DEV_GPU_TEMP_CELSIUS)\n";

#[test]
fn a_label_of_the_scrape_is_kept_or_renamed_as_asked() {
    let renamed = SCRAPED.replace("DCGM_FI_DEV_GPU_TEMP)", "DCGM_FI_DEV_GPU_TEMP_CELSIUS)");
    check(&["--to", "4.9"], "rules.yaml", SCRAPED, &renamed);
    let renamed = renamed.replace("by (kubernetes_node", "by (node").replace("$labels.kubernetes_node", "$labels.node");
    check(&["--to", "4.9", "--label", "kubernetes_node=node"], "rules.yaml", SCRAPED, &renamed);
    let joined = "sum by (kubernetes_node) (DCGM_FI_DEV_GPU_TEMP) * on (kubernetes_node) group_left () up";
    let ran = run_with(Path::new("."), &["--to", "4.9", "--label", "kubernetes_node=node", "-"], joined.as_bytes());
    assert!(
        ran.code == 1 && ran.stderr.contains("left: kubernetes_node: "),
        "other series may have it: {}",
        ran.stderr
    );
    for label in ["kubernetes_node", "=node", "a b=c", "1a=b"] {
        assert_eq!(run(Path::new("."), &["--to", "4.9", "--label", label, "x.yaml"]).code, 2, "{label}");
    }
}

#[test]
fn the_figures_of_the_summary_add_up() {
    let rules = "groups:\n- rules:\n  - expr: DCGM_FI_DEV_GPU_TEMP\n  - expr: DCGM_FI_DEV_GPU_TEMP_CELSIUS\n  - expr: \
                 DCGM_FI_MADE_UP + DCGM_FI_MADE_UP_TOO\n  - expr: up\n    labels: {a: DCGM_FI_DEV_GPU_TEMP}\n";
    let (_, ran) = rewritten(&["--to", "4.9"], "rules.yaml", rules);
    let expected = "# 1 file, 3 expressions: 1 rewritten, 1 left, 1 unchanged; 1 other place left\n";
    assert!(ran.code == 1 && ran.stdout.ends_with(expected), "{}", ran.stdout);
    let variable = r#"{"schemaVersion": 1, "templating": {"list": [{"type": "query", "query": "label_values(DCGM_FI_DEV_GPU_TEMP, Hostname)"}]}}"#;
    let (_, ran) = rewritten(&["--to", "4.9", "--label", "Hostname=node"], "d.json", variable);
    assert!(ran.stdout.contains("Hostname → node: the label"), "{}", ran.stdout);
}

#[test]
fn the_report_as_json() {
    let directory = directory(&[("rules.yaml", RULES)]);
    let ran = run(directory.path(), &["--to", "4.9", "-o", "json", "rules.yaml"]);
    let report: serde_json::Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let summary = serde_json::json!(
        {"files": 1, "expressions": 3, "rewritten": 3, "left": 0, "unchanged": 0, "places_left": 0}
    );
    assert_eq!(report["summary"], summary);
    let first = &report["files"][0]["expressions"][0];
    assert_eq!(first["line"], 9);
    assert!(first["before"].as_str().is_some_and(|text| text.starts_with("# too hot\nmax by (Hostname, gpu)")));
    assert!(first["after"].as_str().is_some_and(|text| text.contains("DCGM_FI_DEV_GPU_TEMP_CELSIUS   # °C")));
    assert_eq!(first["changes"][0]["line"], 10);
    let directory = self::directory(&[("gpus.json", DASHBOARD)]);
    let ran = run(directory.path(), &["--to", "4.9", "-o", "json", "gpus.json"]);
    let report: serde_json::Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let first = &report["files"][0]["expressions"][0];
    let selector = [&first["label_values"], &first["before"], &first["after"]];
    assert_eq!(selector, ["hostname", "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS"]);
}

#[test]
fn wrong_usage() {
    let directory = directory(&[]);
    for arguments in [&[][..], &["--to", "5.0", "a.yaml"], &["--frobnicate", "a.yaml"], &["-o", "xml", "a.yaml"]] {
        assert_eq!(run(directory.path(), arguments).code, 2, "{arguments:?}");
    }
    let help = run(directory.path(), &["--help"]);
    assert_eq!(help.code, 0);
    assert!(help.stdout.contains("Exit codes:") && help.stdout.lines().all(|line| line.chars().count() <= 120));
}

/// A reader that closes the pipe is no failure, and no panic.
#[test]
#[allow(clippy::disallowed_methods, reason = "starts the binary")]
fn a_closed_pipe() {
    let rules = format!("groups:\n- rules:\n{}", "  - expr: DCGM_FI_DEV_GPU_TEMP\n".repeat(1500));
    let directory = directory(&[("a.yaml", &rules)]);
    let mut child = Command::new(env!("CARGO_BIN_EXE_podmeter-migrate"))
        .args(["--to", "4.9", "a.yaml"])
        .current_dir(directory.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("ended");
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}
