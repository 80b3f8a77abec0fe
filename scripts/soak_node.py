"""A node that scripts work on: a simulated kubelet, the fake driver, and an agent with both halves, a journal, TLS and a password."""

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
    """A kubelet, a driver and the agent."""

    def __init__(self, place, speed, gpus=GPUS * [{}]):
        self.place, self.speed, self.pods, self.processes = place, speed, {}, []
        self.driver = {"generation": 1, "gpus": [dict(gpu) for gpu in gpus]}
        self.numbers, self.sequence = itertools.count(1), itertools.count(1)

    def start(self, program, library, kubelet):
        """`program`: a path, or the words of a command that runs it."""
        expect(shutil.which("openssl"), "no openssl: apt-get install openssl")
        place, speed = self.place, self.speed
        (place / "driver").mkdir()
        shutil.copy(library, place / "driver/libnvidia-ml.so.1")
        self.tell_driver()
        self.renew_certificate()
        users = f"basic_auth_users: {{soak: '{HASH}'}}\n"
        (place / "web.yaml").write_text(f"tls_server_config: {{cert_file: tls.crt, key_file: tls.key}}\n{users}")
        (place / "podmeter.yaml").write_text(CONFIG.format(seconds=3 * speed))
        self.log = open(place / "log", "w+")
        pipe = subprocess.PIPE
        self.kubelet = subprocess.Popen([kubelet, place / "kubelet", RESOURCE], stdin=pipe, stdout=pipe, text=True)
        self.processes.append(self.kubelet)
        expect(self.kubelet.stdout.readline() == "the kubelet serves\n", "the simulated kubelet does not serve")
        options = {
            "--listen": "127.0.0.1:0", "--kubelet-root": place / "kubelet", "--config": place / "podmeter.yaml",
            "--web-config": place / "web.yaml", "--admin-socket": place / "admin.sock", "--state-dir": place / "state",
            # So that at the end of a round its pods are forgotten.
            "--retention": "5s",
            # Between two scrapes, and for an answer, there is as much of our own time as ever, or as much as may be.
            "--web-read-timeout": f"{min(65 * speed, 600)}s", "--web-write-timeout": f"{min(10 * speed, 600)}s",
        }
        words = program if isinstance(program, list) else [program]
        command = [*words, "agent", *(f"{name}={value}" for name, value in options.items())]
        state = {"LD_LIBRARY_PATH": str(place / "driver"), "FAKE_NVML_STATE": str(place / "driver/fake-nvml.json")}
        # The fake looks for events each 5 ms otherwise, on the agent's processor time.
        state |= {"FAKE_NVML_LOOK_MICROS": "200000"} | fast_clock(place, speed)
        self.agent = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT, env=image_environment() | os.environ | state)
        self.processes.append(self.agent)
        self.until("the address is told", lambda: self.address())
        answer = self.kubelet.stdout.readline()
        expect(answer.startswith("default/asks holds"), f"the simulated kubelet: {answer}\n{self.said()}")
        self.until("the pod is on the page", lambda: 'pod="asks"' in self.metrics())

    def address(self):
        told = re.search(r"127\.0\.0\.1:(\d+)", self.said())
        return told and ("127.0.0.1", int(told[1]))

    def said(self):
        return (self.place / "log").read_text(errors="replace")

    def until(self, what, condition):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            expect(self.agent.poll() is None, f"the agent ended with {self.agent.returncode}\n{self.said()[-4000:]}")
            expect(time.monotonic() < deadline, f"never: {what}\n{self.said()[-4000:]}")
            time.sleep(0.05)

    def metrics(self):
        connection = http.client.HTTPConnection("localhost", timeout=PATIENCE)
        try:
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(PATIENCE)
            connection.sock.connect(str(self.place / "admin.sock"))
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode()
        except OSError:
            return ""
        finally:
            connection.close()

    def connect(self):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return http.client.HTTPSConnection(*self.address(), timeout=PATIENCE, context=context)

    def series(self):
        """Without values, which change, and errors by code, of which one round meets more kinds than another."""
        lines = (line for line in self.metrics().splitlines() if not line.startswith("#"))
        return {line.rsplit(" ", 1)[0] for line in lines if "_errors_total" not in line}

    def order(self, *words):
        self.kubelet.stdin.write(" ".join(words) + "\n")
        self.kubelet.stdin.flush()
        answers = []
        while (answer := self.kubelet.stdout.readline().strip()) != "done":
            expect(answer, f"the simulated kubelet ended at {words}\n{self.said()[-4000:]}")
            answers.append(answer)
        return answers

    def tell_driver(self):
        partial = self.place / "driver/partial"
        partial.write_text(json.dumps(self.driver))
        partial.rename(self.place / "driver/fake-nvml.json")

    def gpu(self, index, **changes):
        self.driver["gpus"][index].update(changes)
        self.tell_driver()

    def renew_certificate(self):
        for name in ("key", "crt"):
            (self.place / f"new.{name}").unlink(missing_ok=True)
        subject = ["-subj", "/CN=localhost", "-days", "30", "-keyout", self.place / "new.key", "-out", self.place / "new.crt"]
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        subprocess.run(["openssl", "req", "-x509", *curve, *subject], check=True, capture_output=True)
        for name in ("key", "crt"):
            (self.place / f"new.{name}").rename(self.place / f"tls.{name}")

    def admit(self):
        """A pod with one GPU, and a process that works there."""
        deadline = time.monotonic() + PATIENCE
        while True:
            name = f"pod-{next(self.numbers)}"
            answer = self.order("admit", name)[0]
            if device := re.search(r" holds \S+ (GPU-\S+)$", answer):
                break
            # So starved by others that calls of the driver seem to hang.
            expect(time.monotonic() < deadline, f"the simulated kubelet: {answer}")
            time.sleep(1)
        process = subprocess.Popen(["sleep", "infinity"])
        self.pods[name] = process
        # The fake's ids end in the position.
        index = int(device[1][-12:])
        working = {"pid": process.pid, "memory_bytes": 1 << 30, "sm": 60}
        self.gpu(index, utilization={"gpu": 60, "memory": 20}, processes=[working])

    def remove(self):
        name, process = self.pods.popitem()
        for gpu in self.driver["gpus"]:
            if any(working["pid"] == process.pid for working in gpu.get("processes", [])):
                gpu.update(utilization={"gpu": 0, "memory": 0}, processes=[])
        self.tell_driver()
        process.kill()
        process.wait()
        self.order("remove", name)

    def end(self):
        self.agent.send_signal(signal.SIGTERM)
        code = self.agent.wait(timeout=PATIENCE)
        return [f"the agent ended with {code}\n{self.said()[-4000:]}"] if code else []

    def kill(self):
        for process in (*self.processes, *self.pods.values()):
            process.kill()
            process.wait()


def fast_clock(place, speed):
    """What has a process live that fast."""
    if speed == 1:
        return {}
    expect(shutil.which("cc"), "no C compiler: apt-get install gcc libc6-dev")
    library = place / "fast_clock.so"
    source = PROJECT / "tests/support/fast_clock.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, source], check=True)
    return {"LD_PRELOAD": str(library), "FAST_CLOCK": f"{speed} {time.monotonic_ns()}"}


def get(connection, path, password=PASSWORD, **headers):
    credentials = base64.b64encode(f"soak:{password}".encode()).decode()
    connection.request("GET", path, headers={"Authorization": f"Basic {credentials}", **headers})
    return connection.getresponse()


def image_environment():
    """What the image sets, so that the soak measures what ships."""
    lines = (PROJECT / "deploy/image/environment").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def built_kubelet():
    subprocess.run(["cargo", "build", "--quiet", "--example", "kubelet"], cwd=PROJECT, check=True)
    return Path(os.environ.get("CARGO_TARGET_DIR", PROJECT / "target")) / "debug/examples/kubelet"


def expect(holds, otherwise):
    if not holds:
        sys.exit(f"scripts/{Path(sys.argv[0]).name}: {otherwise}")
