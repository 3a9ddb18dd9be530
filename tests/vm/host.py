# SPDX-License-Identifier: Apache-2.0
"""What the build machine must bring: places, tools, the phase lines."""

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
"""Images, and what was learned about this machine. Safe to delete as a whole."""

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
"""Program -> the Debian package that holds it."""

WORK_PREFIX = "sentinel-vm-"

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


class MachineError(RuntimeError):
    """The guest, its image or the build machine is not as it must be."""


def find_tool(name: str) -> str | None:
    """The path of a program, also where a user's PATH leaves sbin out."""
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def missing_packages() -> list[str]:
    """The Debian packages to install before an image can be built and booted."""
    missing = {package for tool, package in TOOLS.items() if find_tool(tool) is None}
    if not KEYRING.exists():
        missing.add("debian-archive-keyring")
    return sorted(missing)


def require_ready() -> None:
    """Raise MachineError unless this is root on a machine with all tools."""
    if os.geteuid() != 0:
        raise MachineError("the two-tier machine is built and booted as root (try sudo)")
    if missing := missing_packages():
        raise MachineError(
            f"missing packages: {' '.join(missing)} (python3 -m tests.vm tools installs them)"
        )


def install_tools() -> None:
    """Install what is missing by apt-get; nothing happens where all is there."""
    missing = missing_packages()
    if not missing:
        return
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], check=True, env=quiet)
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]
    subprocess.run(command, check=True, env=quiet)


def say(text: str) -> None:
    """One line of progress, on stderr so that stdout stays the guest's."""
    print(f"vm: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Say NAME and the seconds it took, whether it worked or not."""
    start = time.monotonic()
    try:
        yield
    except BaseException:
        say(f"{name}: failed after {time.monotonic() - start:.1f} s")
        raise
    say(f"{name}: {time.monotonic() - start:.1f} s")


def spawn_for_life(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start COMMAND so that the kernel kills it when this process ends, however it ends.

    Its output goes to LOG. The parent-death signal follows the thread that
    started the child, not its process, so a thread that lives as long as the
    child starts it.
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
    """A folder for one guest's files. Removes those whose process did not live to do it."""
    parent = Path(tempfile.gettempdir())
    for old in parent.glob(f"{WORK_PREFIX}*-*"):
        pid = old.name.removeprefix(WORK_PREFIX).partition("-")[0]
        if pid.isdigit() and not Path("/proc", pid).exists():
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{WORK_PREFIX}{os.getpid()}-", dir=parent))
