"""A simulated node for scripts: kubelet, fake driver, and an agent with both halves, a journal, TLS and a password."""

import base64
import http.client
import itertools
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
RESOURCE = "nvidia.com/gpu"
PATIENCE = 120  # seconds; for a busy machine
GPUS = 8
PASSWORD = "soak"
HASH = "$2b$10$abcdefghijklmnopqrstuuAPc1/AeqoF3vN.LTkorysXej1mtwJSG"
CONFIG = "health: {{holdDown: 300ms, stuckLimit: {seconds}s}}\n"


class Node:
    """A kubelet, a driver and the agent; all files are in `directory`. The agent's time runs `speed` times as fast."""

    def __init__(self, directory, speed):
        self.directory, self.speed, self.pods, self.processes = directory, speed, {}, []
        self.driver = {"generation": 1, "gpus": [{} for _ in range(GPUS)]}
        self.numbers, self.sequence = itertools.count(1), itertools.count(1)

    def start(self, program, library, kubelet):
        expect(shutil.which("openssl"), "no openssl: apt-get install openssl")
        directory, speed = self.directory, self.speed
        (directory / "driver").mkdir()
        shutil.copy(library, directory / "driver/libnvidia-ml.so.1")
        self.write_driver_state()
        self.renew_certificate()
        users = f"basic_auth_users: {{soak: '{HASH}'}}\n"
        (directory / "web.yaml").write_text(f"tls_server_config: {{cert_file: tls.crt, key_file: tls.key}}\n{users}")
        (directory / "podmeter.yaml").write_text(CONFIG.format(seconds=3 * speed))
        self.kubelet = start_kubelet(kubelet, directory / "kubelet")
        self.processes.append(self.kubelet)
        options = {
            "--listen": "127.0.0.1:0", "--kubelet-root": directory / "kubelet", "--config": directory / "podmeter.yaml",
            "--web-config": directory / "web.yaml", "--admin-socket": directory / "admin.sock", "--state-dir": directory / "state",
            # Short, so that ended pods leave the page before the round ends.
            "--retention": "5s",
            # The default timeouts in real time, as far as the options allow.
            "--web-read-timeout": f"{min(65 * speed, 600)}s", "--web-write-timeout": f"{min(10 * speed, 600)}s",
        }
        command = [program, "agent", *(f"{name}={value}" for name, value in options.items())]
        driver = {"LD_LIBRARY_PATH": str(directory / "driver"), "FAKE_NVML_STATE": str(directory / "driver/fake-nvml.json")}
        # The fake driver's default of 5 ms would cost the agent processor time.
        driver["FAKE_NVML_READ_MICROS"] = "200000"
        environment = image_environment() | os.environ | driver | fast_clock(directory, speed)
        with open(directory / "log", "w") as log:
            self.agent = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        self.processes.append(self.agent)
        self.until("the agent logs its address", lambda: self.address())
        answer = self.kubelet.stdout.readline()
        expect(answer.startswith("default/asks holds"), f"the simulated kubelet: {answer}\n{self.log()}")
        self.until("the pod is on the page", lambda: 'pod="asks"' in self.metrics())

    def address(self):
        found = re.search(r"127\.0\.0\.1:(\d+)", self.log())
        return found and ("127.0.0.1", int(found[1]))

    def log(self):
        return (self.directory / "log").read_text(errors="replace")

    def log_end(self):
        return self.log()[-4000:]

    def until(self, what, condition):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            expect(self.agent.poll() is None, f"the agent exited with {self.agent.returncode}\n{self.log_end()}")
            expect(time.monotonic() < deadline, f"not within {PATIENCE} s: {what}\n{self.log_end()}")
            time.sleep(0.05)

    def metrics(self):
        return page(unix(self.directory / "admin.sock", PATIENCE), "/metrics") or ""

    def connect(self):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return http.client.HTTPSConnection(*self.address(), timeout=PATIENCE, context=context)

    def series(self):
        """Names and labels, without errors by code, which differ between rounds."""
        lines = (line for line in self.metrics().splitlines() if not line.startswith("#"))
        return {line.rsplit(" ", 1)[0] for line in lines if "_errors_total" not in line}

    def command_kubelet(self, *words):
        """Sends a command to the simulated kubelet and returns the lines of its answer."""
        self.kubelet.stdin.write(" ".join(words) + "\n")
        self.kubelet.stdin.flush()
        answers = []
        while (answer := self.kubelet.stdout.readline().strip()) != "done":
            expect(answer, f"the simulated kubelet exited at {words}\n{self.log_end()}")
            answers.append(answer)
        return answers

    def write_driver_state(self):
        partial = self.directory / "driver/partial"
        partial.write_text(json.dumps(self.driver))
        partial.rename(self.directory / "driver/fake-nvml.json")

    def reload_driver(self):
        self.driver["generation"] += 1
        self.write_driver_state()

    def change_gpu(self, index, **changes):
        self.driver["gpus"][index].update(changes)
        self.write_driver_state()

    def renew_certificate(self):
        for name in ("key", "crt"):
            (self.directory / f"new.{name}").unlink(missing_ok=True)
        files = ["-keyout", self.directory / "new.key", "-out", self.directory / "new.crt"]
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        command = ["openssl", "req", "-x509", *curve, "-subj", "/CN=localhost", "-days", "30", *files]
        subprocess.run(command, check=True, capture_output=True)
        for name in ("key", "crt"):
            (self.directory / f"new.{name}").rename(self.directory / f"tls.{name}")

    def admit(self):
        """Starts a pod with one GPU and a process that uses it."""
        deadline = time.monotonic() + PATIENCE
        while True:
            name = f"pod-{next(self.numbers)}"
            answer = self.command_kubelet("admit", name)[0]
            if device := re.search(r" holds \S+ (GPU-\S+)$", answer):
                break
            # On a busy machine a driver call can take so long that the device is unhealthy for a moment.
            expect(time.monotonic() < deadline, f"the simulated kubelet: {answer}")
            time.sleep(1)
        process = subprocess.Popen(["sleep", "infinity"])
        self.pods[name] = process
        # The fake driver's UUIDs end in the GPU's index.
        index = int(device[1][-12:])
        self.change_gpu(
            index, utilization={"gpu": 60, "memory": 20}, processes=[{"pid": process.pid, "memory_bytes": 1 << 30, "sm": 60}]
        )

    def remove(self):
        name, process = self.pods.popitem()
        for gpu in self.driver["gpus"]:
            if any(user["pid"] == process.pid for user in gpu.get("processes", [])):
                gpu.update(utilization={"gpu": 0, "memory": 0}, processes=[])
        self.write_driver_state()
        process.kill()
        process.wait()
        self.command_kubelet("remove", name)

    def stop(self):
        """Stops the agent with SIGTERM and returns the failures."""
        self.agent.send_signal(signal.SIGTERM)
        status = self.agent.wait(timeout=PATIENCE)
        return [f"the agent exited with {status}\n{self.log_end()}"] if status else []

    def kill(self):
        for process in (*self.processes, *self.pods.values()):
            process.kill()
            process.wait()


def fast_clock(directory, speed):
    """The environment that makes a process's time run `speed` times as fast."""
    if speed == 1:
        return {}
    expect(shutil.which("cc"), "no C compiler: apt-get install gcc libc6-dev")
    library = directory / "fast_clock.so"
    source = PROJECT / "tests/support/fast_clock.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, source], check=True)
    return {"LD_PRELOAD": str(library), "FAST_CLOCK": f"{speed} {time.monotonic_ns()}"}


def get(connection, path, password=PASSWORD, **headers):
    credentials = base64.b64encode(f"soak:{password}".encode()).decode()
    connection.request("GET", path, headers={"Authorization": f"Basic {credentials}", **headers})
    return connection.getresponse()


def unix(path, timeout):
    def connect():
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(timeout)
        connection.connect(str(path))
        return connection

    return connect


def page(connect, path):
    """The body of a response with status 200, or None; `connect` returns the connected socket."""
    connection = http.client.HTTPConnection("localhost")
    try:
        connection.sock = connect()
        connection.request("GET", path)
        response = connection.getresponse()
        return response.read().decode() if response.status == 200 else None
    except OSError:
        return None
    finally:
        connection.close()


def image_environment():
    """The environment of the image's process."""
    lines = (PROJECT / "deploy/image/environment").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def built_kubelet():
    subprocess.run(["cargo", "build", "--quiet", "--example", "kubelet"], cwd=PROJECT, check=True)
    return Path(os.environ.get("CARGO_TARGET_DIR", PROJECT / "target")) / "debug/examples/kubelet"


def start_kubelet(program, root):
    """Starts examples/kubelet.rs under `root` and waits until it serves."""
    kubelet = subprocess.Popen([program, root, RESOURCE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    if kubelet.stdout.readline() != "the kubelet serves\n":
        kubelet.kill()
        expect(False, "the simulated kubelet does not serve")
    return kubelet


def expect(condition, problem):
    if not condition:
        sys.exit(f"scripts/{Path(sys.argv[0]).name}: {problem}")
