"""A simulated kubelet for scripts, and requests to an agent."""

import http.client
import os
import socket
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
RESOURCE = "nvidia.com/gpu"
PATIENCE = 120  # seconds; for a busy machine


def image_environment():
    """The environment of the image's process."""
    lines = (PROJECT / "deploy/image/environment").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def start_kubelet(root):
    """Builds and starts examples/kubelet.rs under `root`, and waits until it serves."""
    subprocess.run(["cargo", "build", "--quiet", "--example", "kubelet"], cwd=PROJECT, check=True)
    program = Path(os.environ.get("CARGO_TARGET_DIR", PROJECT / "target")) / "debug/examples/kubelet"
    kubelet = subprocess.Popen([program, root, RESOURCE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    if kubelet.stdout.readline() != "the kubelet serves\n":
        kubelet.kill()
        expect(False, "the simulated kubelet does not serve")
    return kubelet


def page(socket_path, path, timeout=PATIENCE):
    """The body of a response with status 200 over a unix socket, or None."""
    connection = http.client.HTTPConnection("localhost")
    try:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(timeout)
        connection.sock.connect(str(socket_path))
        connection.request("GET", path)
        response = connection.getresponse()
        return response.read().decode() if response.status == 200 else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def expect(condition, problem):
    if not condition:
        sys.exit(f"scripts/{Path(sys.argv[0]).name}: {problem}")
