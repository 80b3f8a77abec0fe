"""Common parts of scripts/fleet and scripts/fleet-day: simulated nodes, a Prometheus server, and tables by fleet size."""

import argparse
import ctypes
import datetime
import http.client
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.parse
from pathlib import Path
from typing import Callable, NamedTuple

PROJECT = Path(__file__).resolve().parents[1]
RULES = PROJECT / "deploy/rules/podmeter.rules.yaml"
DASHBOARD = PROJECT / "dashboards/fleet.json"
PROFILES = ["8xh100", "8xh100-timesliced", "8xh100-mig", "8xa100"]
JOB = "podmeter"
EXTRAPOLATED = [1_000, 10_000]
MIB = 1 << 20
PATIENCE_SECONDS = 120
PR_SET_PDEATHSIG = 1
SCRIPT = f"scripts/{Path(sys.argv[0]).name}"


class Row(NamedTuple):
    figure: str
    text: str
    # What grows with the number of nodes, and its format; None where nothing is extrapolated.
    value: float | None = None
    write: Callable[[float], str] = str


def run(main):
    """Runs `main` so that a signal raises an exception, which stops the children."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # A shell makes its background jobs ignore SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except QueryFailed as error:
        fail(error)


def fail(problem):
    sys.exit(f"{SCRIPT}: {problem}")


def progress(text):
    print(f"{SCRIPT}: {text}", file=sys.stderr, flush=True)


def sizes(text):
    numbers = [int(part) for part in text.split(",")]
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError("at least one node")
    return numbers


def positive(text):
    number = float(text)
    if number <= 0:
        raise argparse.ArgumentTypeError("more than 0")
    return number


def tool(name):
    found = shutil.which(name)
    if found is None:
        fail(f"no {name} found: install it (Debian: apt-get install prometheus) or add it to PATH")
    return found


def conditions(binary, server, *more):
    """The conditions of a table, one line."""
    system = os.uname()
    version = subprocess.run([server, "--version"], capture_output=True, text=True).stdout.split()[2]
    facts = [
        datetime.datetime.now(datetime.timezone.utc).strftime("%F %H:%M UTC"),
        f"{system.sysname} {system.release} {system.machine}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before",
        subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout.strip(),
        f"Prometheus {version}",
    ]
    return "; ".join([*facts, *more]) + "\n"


def find_binary():
    named = os.environ.get("PODMETER_BINARY")
    if named is None:
        subprocess.run(["cargo", "build", "--release", "--quiet"], cwd=PROJECT, check=True)
        return PROJECT / "target/release/podmeter"
    if not os.access(named, os.X_OK):
        fail(f"PODMETER_BINARY={named} is not an executable; name one, or unset it to build one")
    return Path(named).resolve()


def die_with_parent():
    """Sends the child SIGTERM when this script ends, even if it is killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Process:
    """A child process with its own log file."""

    def __init__(self, name, command, log):
        self.name, self.log = name, log
        with open(log, "w") as output:
            self.child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, preexec_fn=die_with_parent
            )

    def expect_running(self):
        if self.child.poll() is not None:
            log = "\n".join(self.log.read_text().splitlines()[-10:])
            fail(f"{self.name} exited with {self.child.returncode}:\n{log}")

    def processor_seconds(self):
        fields = Path(f"/proc/{self.child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def processor_nanoseconds(self):
        """In nanoseconds; the time of ended threads is lost."""
        tasks = Path(f"/proc/{self.child.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks)

    def memory(self):
        """Resident and proportional set size (shared pages divided among their users), in bytes."""
        lines = Path(f"/proc/{self.child.pid}/smaps_rollup").read_text().splitlines()[1:]
        kibibytes = {line.split()[0]: int(line.split()[1]) for line in lines}
        return kibibytes["Rss:"] * 1024, kibibytes["Pss:"] * 1024


def stop(processes):
    for process in processes:
        process.child.terminate()
    for process in processes:
        try:
            process.child.wait(10)
        except subprocess.TimeoutExpired:
            process.child.kill()
            process.child.wait()


class Node(Process):
    def __init__(self, number, profile, binary, directory):
        self.profile = profile
        command = [binary, "demo", "--listen", "127.0.0.1:0", "--churn", "--seed", str(number), "--profile", profile]
        super().__init__(f"gpu-{number:04}", command, directory / f"gpu-{number:04}.log")

    def address(self):
        found = re.search(r"listening\b.*\baddress=(\S+)", self.log.read_text())
        return found and found[1]


def start_nodes(size, profiles, binary, directory):
    nodes = []
    try:
        for number in range(1, size + 1):
            nodes.append(Node(number, profiles[number % len(profiles)], binary, directory))
        deadline = time.monotonic() + PATIENCE_SECONDS
        for node in nodes:
            while not node.address():
                node.expect_running()
                if time.monotonic() > deadline:
                    fail(f"{node.name} does not listen after {PATIENCE_SECONDS} s")
                time.sleep(0.05)
        return nodes
    except BaseException:
        stop(nodes)
        raise


def milliseconds(seconds):
    return f"{round(seconds * 1000)}ms"


class Prometheus(Process):
    def __init__(self, server, directory, settings, *flags):
        # JSON is YAML.
        (directory / "prometheus.yml").write_text(json.dumps(settings))
        self.data = directory / "data"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [
            server,
            f"--config.file={directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.data}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            # For the snapshot that scripts/fleet measures.
            "--web.enable-admin-api",
            "--log.level=warn",
            *flags,
        ]
        super().__init__("prometheus", command, directory / "prometheus.log")
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)

    def wait(self):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.get("/-/ready")[0] != 200:
            self.expect_running()
            if time.monotonic() > deadline:
                fail(f"prometheus is not ready after {PATIENCE_SECONDS} s")
            time.sleep(0.1)

    def get(self, path, method="GET"):
        try:
            self.connection.request(method, path)
            answer = self.connection.getresponse()
            return answer.status, answer.read().decode()
        except OSError:
            self.connection.close()
            return 0, "no response"

    def api(self, route, method="GET", **parameters):
        status, body = self.get(f"/api/v1/{route}?{urllib.parse.urlencode(parameters)}", method)
        if status != 200:
            raise QueryFailed(f"{route} {parameters.get('query', '')}: {status}: {body.strip()[:400]}")
        return json.loads(body)["data"]

    def instant(self, query, **parameters):
        """Query → its series."""
        return self.api("query", query=query, **parameters)["result"]

    def until(self, query, holds):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            self.expect_running()
            result = self.instant(query)
            if holds(float(result[0]["value"][1]) if result else 0):
                return
            if time.monotonic() > deadline:
                fail(f"not within {PATIENCE_SECONDS} s: {query}; now {result}")
            time.sleep(0.5)

    def own_metrics(self):
        """Prometheus' own metrics: name and labels → value."""
        lines = self.get("/metrics")[1].splitlines()
        return {key: float(value) for key, value in (line.rsplit(" ", 1) for line in lines if line[:1] not in ("#", ""))}


class QueryFailed(Exception):
    pass


def panels():
    """Title and queries of each panel; graphs are marked, because a number can have the same title."""
    rows = json.loads(DASHBOARD.read_text())["panels"]
    for panel in [panel for row in rows for panel in (row, *row.get("panels", []))]:
        if panel.get("targets"):
            is_graph = panel["type"] == "timeseries"
            yield panel["title"] + (", graph" if is_graph else ""), panel["targets"]


def grafana_query(expression, scrape_interval, step, range_seconds):
    """The query with all values of every variable selected and Grafana's rate interval."""
    values = {
        "$__rate_interval": milliseconds(max(step + scrape_interval, 4 * scrape_interval)),
        "$__range": milliseconds(range_seconds),
        "$job": ".+",
        "$cluster": ".*",
        "$node": ".*",
    }
    for name, value in values.items():
        expression = expression.replace(name, value)
    if "$" in expression:
        raise QueryFailed(f"unknown variable: {expression}")
    return expression


def query_panel(prometheus, targets, end, scrape_interval, step, seconds):
    """Sends a panel's queries as Grafana does, over the `seconds` before `end`."""
    for target in targets:
        query = grafana_query(target["expr"], scrape_interval, step, seconds)
        if target.get("instant"):
            prometheus.instant(query, time=end)
        else:
            prometheus.api("query_range", query=query, start=end - seconds, end=end, step=step)


def table(columns):
    """One row per figure; with several sizes, also an extrapolation with a straight line."""
    counts = list(columns)
    larger = EXTRAPOLATED if len(counts) > 1 else []
    heads = ["figure", *(f"{size:,} nodes" for size in counts), *(f"{size:,}, extrapolated" for size in larger)]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for figure in dict.fromkeys(row.figure for rows in columns.values() for row in rows):
        found = {size: row for size, rows in columns.items() for row in rows if row.figure == figure}
        cells = [found[size].text if size in found else "–" for size in counts]
        numbers = {size: row.value for size, row in found.items() if row.value is not None}
        write = next(iter(found.values())).write
        cells += [write(line(numbers, size)) if grow(numbers) else "" for size in larger]
        lines.append(f"| {figure} | {' | '.join(cells)} |")
    return "\n".join(lines)


def grow(numbers):
    """A figure that falls with more nodes is noise and is not extrapolated."""
    return len(numbers) > 1 and statistics.linear_regression(list(numbers), list(numbers.values())).slope > 0


def line(numbers, size):
    """The value of the least-squares line through the measured sizes at another size."""
    slope, start = statistics.linear_regression(list(numbers), list(numbers.values()))
    return start + slope * size


def at(ordered, share):
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def share_text(share):
    # Anything less than all is never rounded up to 100 %.
    return "100 %" if share == 1 else f"{min(99.99, 100 * share):.2f} %"


def milliseconds_text(seconds):
    return f"{1000 * seconds:,.1f}" if seconds < 1 else f"{1000 * seconds:,.0f}"


def time_text(seconds):
    return f"{1000 * seconds:,.0f} ms" if seconds < 1 else f"{seconds:,.1f} s"


def count_text(number):
    return f"{number:,.0f}"


def count_row(figure, number):
    return Row(figure, count_text(number), number, count_text)


def bytes_text(number):
    return f"{number / MIB / 1024:,.1f} GiB"
