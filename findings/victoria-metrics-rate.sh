#!/usr/bin/env bash
# VictoriaMetrics 1.79.5 and Prometheus 2.42.0, both as Debian 12 packages them.
#
# Behaviour: VictoriaMetrics' rate(x[5m]) divides the increase of a series that is younger than the range by the age of the
# series; Prometheus divides by the range. Their increase(x[5m]) agree.
# Input: one GPU, on which five containers run one after another, each busy for its whole 60 s. Its counter of busy seconds
# has a sample every 5 s.
# Seen: sum(rate(busy_seconds_total[5m])) is 5.0 in VictoriaMetrics and 1.03 in Prometheus;
# sum(increase(busy_seconds_total[5m])) / 300 is 1.0 and 1.03.
# Expected: about 1, one busy GPU, from both. A sum of rates over series that come and go is too large, without a warning.
# Concerns: every sum of rates over counters of pods or containers in VictoriaMetrics (CPU seconds too).
#
# Needs apt-get with Debian 12, python3 and curl. Exits 1 if this has changed.
set -euo pipefail
directory=$(mktemp -d)
server=''
end() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    wait || true
    rm -rf "$directory"
}
trap end EXIT
cd "$directory"
chmod 755 .
apt-get download -qq victoria-metrics=1.79.5+ds1-2+b5 prometheus=2.42.0+ds-5+deb12u1 2>/dev/null
for package in ./*.deb; do dpkg -x "$package" root; done

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
root/usr/bin/victoria-metrics -httpListenAddr="127.0.0.1:$port" -storageDataPath=data -search.latencyOffset=0s \
    >log 2>&1 &
server=$!
url="http://127.0.0.1:$port"
curl --silent --fail --retry 20 --retry-delay 1 --retry-connrefused --output /dev/null "$url/health"

now=$(($(date +%s) - 10))
python3 - "$now" >samples <<'PYTHON'
import sys

end = int(sys.argv[1])
for pod in range(5):
    start = end - 300 + 60 * pod
    for second in range(0, 61, 5):
        print(f'busy_seconds_total{{pod="{pod}"}} {second} {(start + second) * 1000}')
PYTHON
curl --silent --fail --data-binary @samples "$url/api/v1/import/prometheus"
curl --silent --fail --output /dev/null "$url/internal/force_flush"
sleep 2
victoria() {
    curl --silent --fail --get --data-urlencode "query=$1" --data-urlencode "time=$now" "$url/api/v1/query" |
        python3 -c 'import json, sys; print(round(float(json.load(sys.stdin)["data"]["result"][0]["value"][1]), 2))'
}
rate=$(victoria 'sum(rate(busy_seconds_total[5m]))')
increase=$(victoria 'sum(increase(busy_seconds_total[5m])) / 300')
echo "VictoriaMetrics: rate $rate, increase / 300 $increase"

python3 - >test.yaml <<'PYTHON'
print("evaluation_interval: 5s\ntests:\n  - interval: 5s\n    input_series:")
for pod in range(5):
    before = f"_x{12 * pod} " if pod else ""
    print(f"      - series: 'busy_seconds_total{{pod=\"{pod}\"}}'\n        values: {before}0+5x12 stale")
print("    promql_expr_test:")
for query in "sum(rate(busy_seconds_total[5m]))", "sum(increase(busy_seconds_total[5m])) / 300":
    for bound in "> bool 1.0", "< bool 1.06":
        print(f"      - expr: ({query}) {bound}\n        eval_time: 5m\n        exp_samples: [{{ labels: '{{}}', value: 1 }}]")
PYTHON
root/usr/bin/promtool test rules test.yaml
python3 -c 'import sys; rate, increase = map(float, sys.argv[1:]); sys.exit(not (rate > 4.5 and 0.9 < increase < 1.1))' \
    "$rate" "$increase"
echo 'As described.'
