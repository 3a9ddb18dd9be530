# SPDX-License-Identifier: Apache-2.0
"""Paths, tools and progress output on the host."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
CACHE = REPOSITORY / "build" / "vm"
"""Holds images, kernel headers and the result of the KVM probe. Safe to delete."""

TOOLS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "mmdebstrap": "mmdebstrap",
    "mke2fs": "e2fsprogs",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "unshare": "util-linux",
    "setpriv": "util-linux",
    "git": "git",
}
"""Program -> its Debian package."""

WORK_PREFIX = "sentinel-vm-"

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


class MachineError(RuntimeError):
    """A guest, its image or the host does not work."""


def find_tool(name: str) -> str | None:
    """The path of a program in PATH, /usr/sbin or /sbin; None if it is not found."""
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def missing_packages() -> list[str]:
    """The missing Debian packages that images and guests require."""
    missing = {package for tool, package in TOOLS.items() if find_tool(tool) is None}
    if not KEYRING.exists():
        missing.add("debian-archive-keyring")
    return sorted(missing)


def require_ready() -> None:
    """Raise MachineError unless this process is root and all tools are installed."""
    if os.geteuid() != 0:
        raise MachineError("building and booting guests requires root (try sudo)")
    if missing := missing_packages():
        raise MachineError(
            f"missing packages: {' '.join(missing)} (to install: python3 -m tests.vm tools)"
        )


def install_tools() -> None:
    """Install the missing packages with apt-get."""
    missing = missing_packages()
    if not missing:
        return
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], check=True, env=quiet)
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]
    subprocess.run(command, check=True, env=quiet)


def say(text: str) -> None:
    """Print a line of progress to stderr; stdout is for the guest's output."""
    print(f"vm: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Print NAME and the seconds that the block took, even if the block fails."""
    start = time.monotonic()
    try:
        yield
    except BaseException:
        say(f"{name}: failed after {time.monotonic() - start:.1f} s")
        raise
    say(f"{name}: {time.monotonic() - start:.1f} s")


def spawn_with_parent(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start COMMAND with its output to LOG; the kernel kills it when this process ends.

    The parent-death signal is sent when the thread that started the child exits, so
    a new thread starts the child and waits until the child ends.
    """
    started = threading.Event()
    children: list[subprocess.Popen[bytes]] = []

    def keep() -> None:
        try:
            with log.open("wb") as output:
                child = subprocess.Popen(
                    ["setpriv", "--pdeathsig", "KILL", *command],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            children.append(child)
        finally:
            started.set()
        child.wait()

    threading.Thread(target=keep, daemon=True, name=f"keeper of {command[0]}").start()
    started.wait()
    if not children:
        raise MachineError(f"cannot start {command[0]}")
    return children[0]


def make_work_folder() -> Path:
    """Create a folder for one guest's files. Also remove the folders that exited processes left."""
    parent = Path(tempfile.gettempdir())
    for old in parent.glob(f"{WORK_PREFIX}*-*"):
        pid = old.name.removeprefix(WORK_PREFIX).partition("-")[0]
        if pid.isdigit() and not Path("/proc", pid).exists():
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{WORK_PREFIX}{os.getpid()}-", dir=parent))
