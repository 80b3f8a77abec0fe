"""The crates that cargo links into the binary: which, under which licence, and with which texts. Used by scripts/release
and deploy/image/build.

Input: `cargo tree`, which resolves features for one target and leaves out what only builds or tests; `cargo metadata`, which
has the sources' directories; Cargo.lock, which has their digests. Procedural macros run in the compiler and are not linked.
"""

import functools
import json
import re
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
TARGETS = {"amd64": "x86_64-unknown-linux-gnu", "arm64": "aarch64-unknown-linux-gnu"}
# The name of a file with a licence or a notice.
TEXTS = re.compile(r"^(un)?licen[cs]e|^copying|^copyright|^notice", re.IGNORECASE)
# Texts that a crate's package lacks: of its repository, one file for each crate.
ADDED_TEXTS = PROJECT / "deploy/image/licenses"
# Crate without a text → crate of the same repository and licence that has it, or whose text is added.
SAME_TEXT = {"tonic-prost": "tonic"}
# C libraries whose source is in a crate: crate → name, licence, header with the version, its pattern.
BUNDLED = {
    "libsqlite3-sys": ("sqlite", "blessing", "sqlite3/sqlite3.h", r'^#define SQLITE_VERSION +"(.*)"'),
}


@dataclass(frozen=True, order=True)
class Crate:
    name: str
    version: str


def version():
    """The version that Cargo.toml declares."""
    return tomllib.loads((PROJECT / "Cargo.toml").read_text())["workspace"]["package"]["version"]


@functools.cache
def linked(architecture):
    """Crate → the crates that it is linked with, podmeter included."""
    crates, above = {}, []
    for line in tree(architecture, "--prefix", "depth", "--format", " {p}"):
        depth, name, number = re.match(r"(\d+) (\S+) v(\S+)", line).groups()
        crate = Crate(name, number)
        crates.setdefault(crate, set())
        above[int(depth) :] = [crate]
        if len(above) > 1:
            crates[above[-2]].add(crate)
    return dict(sorted(crates.items()))


def tree(architecture, *options):
    command = ["cargo", "tree", "--locked", "--package", "podmeter", "--edges", "normal,no-proc-macro"]
    return output([*command, "--target", TARGETS[architecture], *options]).splitlines()


def third_party():
    """The crates of others that are linked into the binary for any architecture."""
    crates = set().union(*(linked(architecture) for architecture in TARGETS))
    return sorted(crate for crate in crates if crate.name != "podmeter")


@functools.cache
def packages():
    """Crate → its entry of `cargo metadata`."""
    platforms = [f"--filter-platform={target}" for target in TARGETS.values()]
    found = json.loads(output(["cargo", "metadata", "--locked", "--format-version", "1", *platforms]))["packages"]
    return {Crate(each["name"], each["version"]): each for each in found}


@functools.cache
def digests():
    """Crate → the SHA-256 of its package."""
    locked = tomllib.loads((PROJECT / "Cargo.lock").read_text())["package"]
    return {Crate(each["name"], each["version"]): each["checksum"] for each in locked if "checksum" in each}


def bundled(crate):
    """Name, licence and version of the C library whose source is in a crate, if there is one."""
    if crate.name not in BUNDLED:
        return None
    name, licence, header, pattern = BUNDLED[crate.name]
    found = re.findall(pattern, (directory(crate) / header).read_text(), re.MULTILINE)
    if not found:
        raise ValueError(f"{crate.name} {crate.version}: {header} has no version of {name}")
    return name, licence, ".".join(found)


def directory(crate):
    return Path(packages()[crate]["manifest_path"]).parent


def licence(crate):
    """The SPDX expression; old packages separate alternatives by a slash."""
    return packages()[crate]["license"].replace("/", " OR ")


def licence_texts():
    """The licence texts of all crates that are linked into the binary, each text once."""
    crates, carriers, missing = third_party(), {}, []
    for crate in crates:
        files = texts_of(crate, crates)
        if not files:
            missing.append(f"{crate.name} {crate.version} ({licence(crate)})")
        for file in files:
            carriers.setdefault(file.read_text().strip(), []).append(crate)
    if missing:
        what = f"put the text of its repository into {ADDED_TEXTS.relative_to(PROJECT)}/CRATE"
        raise ValueError(f"no licence text in the package of {', '.join(missing)}; {what}")
    parts = ["The program podmeter contains the following crates. Below, each text follows the crates that carry it.\n"]
    parts.append("\n".join(f"{crate.name} {crate.version}: {licence(crate)}" for crate in crates))
    for crate in crates:
        if found := bundled(crate):
            name, spdx, number = found
            parts.append(f"{crate.name} contains {name} {number}: {spdx}.")
    parts.append("The Rust standard library has its own file beside this one.\n")
    for text, names in sorted(carriers.items(), key=lambda item: item[1]):
        carrying = ", ".join(f"{crate.name} {crate.version}" for crate in names)
        parts.append(f"{'=' * 100}\n{carrying}\n{'-' * 100}\n{text}\n")
    return "\n".join(parts)


def texts_of(crate, crates):
    files = own_texts(crate)
    if not files and crate.name in SAME_TEXT:
        files = next((own_texts(other) for other in crates if other.name == SAME_TEXT[crate.name]), [])
    added = ADDED_TEXTS / SAME_TEXT.get(crate.name, crate.name)
    if not files and added.exists():
        files = [added]
    return files


def own_texts(crate):
    return sorted(file for file in directory(crate).iterdir() if TEXTS.match(file.name) and file.is_file())


def standard_library():
    """The file with the notices of Rust's standard library, from the toolchain."""
    file = Path(output(["rustc", "--print", "sysroot"]).strip()) / "share/doc/rust/COPYRIGHT-library.html"
    if not file.exists():
        raise ValueError(f"{file} is missing; it is part of the toolchain's rustc")
    return file


def is_repository():
    """Whether git reads this directory: a source archive has no repository, and a checkout of another user is refused."""
    return subprocess.run(["git", "rev-parse", "--git-dir"], cwd=PROJECT, capture_output=True).returncode == 0


def project_files():
    """The paths of the project's files, relative to it, whether committed or not."""
    if is_repository():
        listed = output(["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]).split("\0")
        return [name for name in listed if name and (PROJECT / name).is_file()]
    ignored = {"target", "node_modules", "artifacts", "__pycache__", ".git"}
    walked = (file.relative_to(PROJECT) for file in sorted(PROJECT.rglob("*")) if file.is_file())
    return [str(file) for file in walked if ignored.isdisjoint(file.parts)]


def output(command):
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    if done.returncode != 0:
        raise ValueError(f"{' '.join(command[:2])}: {done.stderr.strip()}")
    return done.stdout
