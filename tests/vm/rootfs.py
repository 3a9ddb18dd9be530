# SPDX-License-Identifier: Apache-2.0
"""Runs compilers and trainings in the image's root tree at native speed.

The tree is mounted read-only in a private mount namespace, so commands can use it
in parallel and cannot change it.
"""

from __future__ import annotations

import fcntl
import filecmp
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from .host import REPOSITORY, MachineError, require_ready
from .image import Image, ensure_image

WRITABLE_PLACES = ("/root", "/tmp", "/mnt", "/run")
"""An empty tmpfs covers each of these folders; mount points must be below one of them."""

BUILD_PLACE = "/root/build"
TREE = "/root/sentineld"
"""Path of the repository in a root tree, and also in a guest."""

MODULE = "kmod/sentinel.ko"
SHIM = "sentineld/shim/libsentinelshim.so"
"""Paths of the built files, relative to the repository."""

SOURCE_SUFFIXES = (".c", ".h", ".S", ".map", ".lds")
SOURCE_NAMES = ("Makefile", "Kbuild")


def root_command(
    command: str,
    binds: Mapping[Path, str] | None = None,
    read_only: Mapping[Path, str] | None = None,
    image: Image | None = None,
) -> list[str]:
    """The command that runs a bash line chrooted in the image's tree.

    binds, read_only: folder on the host -> its mount point in the tree, below
        WRITABLE_PLACES. Writes to folders in `binds` persist on the host.

    The repository is at TREE, read-only. If the line begins with `exec PROGRAM`, PROGRAM runs in
    the process that was started with the returned command. A process in the chroot and one outside
    can connect by Unix sockets in a bind-mounted folder.
    """
    require_ready()
    root = (image or ensure_image()).root
    mounts = [(REPOSITORY, TREE, True)]
    mounts += [(path, place, True) for path, place in (read_only or {}).items()]
    mounts += [(path, place, False) for path, place in (binds or {}).items()]
    script = [
        "set -e",
        f"cd {shlex.quote(str(root))}",
        "mount --bind . .",
        f"cd {shlex.quote(str(root))}",
        "mount -o remount,bind,ro .",
        "mount -t proc proc proc",
        "mount --rbind /dev dev",
        *(f"mount -t tmpfs tmpfs .{place}" for place in WRITABLE_PLACES),
    ]
    for path, place, fixed in mounts:
        if not place.startswith(tuple(f"{parent}/" for parent in WRITABLE_PLACES)):
            raise ValueError(f"{place} is not below {' or '.join(WRITABLE_PLACES)}")
        target = shlex.quote(f".{place}")
        script += [f"mkdir -p {target}", f"mount --bind {shlex.quote(str(path))} {target}"]
        if fixed:
            script.append(f"mount -o remount,bind,ro {target}")
    environment = "env -i HOME=/root LC_ALL=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin"
    script.append(f"exec {environment} chroot . bash -c {shlex.quote(command)}")
    return ["unshare", "--mount", "--propagation", "private", "bash", "-c", "\n".join(script)]


def in_root(
    command: str,
    binds: Mapping[Path, str] | None = None,
    read_only: Mapping[Path, str] | None = None,
    image: Image | None = None,
    timeout: float = 600.0,
) -> subprocess.CompletedProcess[str]:
    """Run the command that root_command() returns. Raises MachineError if the command fails.

    timeout: seconds after which subprocess.TimeoutExpired is raised.
    """
    result = subprocess.run(
        root_command(command, binds, read_only, image),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout,
    )
    if result.returncode != 0:
        output = (result.stdout + result.stderr).strip()
        raise MachineError(f"`{command}` failed in the image's tree:\n{output[-6000:]}")
    return result


def build_module(out_dir: Path | None = None, image: Image | None = None) -> Path:
    """Build kmod/ for the guest's kernel; returns the path of sentinel.ko.

    Copies the sources into `out_dir` (default: in the image's folder) and runs make there, which
    compiles only files that have changed since the last build. sparse checks each compiled file,
    and a warning fails the build. make's output of all builds is in kmod.log in `out_dir`.
    """
    image = image or ensure_image()
    # -Wno-context: sparse cannot describe a function that takes a lock only on success.
    options = f"KDIR=/lib/modules/{image.kernel_release}/build W=1 C=1 CF=-Wno-context"
    return _make("kmod", options, Path(MODULE).name, out_dir, image)


def build_shim(out_dir: Path | None = None, image: Image | None = None) -> Path:
    """Build the shim's C library with the guest's compiler and libc; returns the built file."""
    name = Path(SHIM).name
    return _make("sentineld/shim/native", f"OUT={name}", name, out_dir, image or ensure_image())


def build_artifacts(out_dir: Path | None = None, image: Image | None = None) -> dict[str, Path]:
    """Build all C parts for the guest: path in the repository -> built file."""
    image = image or ensure_image()
    return {MODULE: build_module(out_dir, image), SHIM: build_shim(out_dir, image)}


def _make(folder: str, options: str, product: str, out_dir: Path | None, image: Image) -> Path:
    parent = out_dir or image.directory / "artifacts"
    work = parent / folder
    work.mkdir(parents=True, exist_ok=True)
    with (parent / f"{work.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _copy_changed(REPOSITORY / folder, work)
        output = in_root(
            f"make -C {BUILD_PLACE} {options} 2>&1", {work: BUILD_PLACE}, image=image
        ).stdout
        with (parent / f"{work.name}.log").open("a") as log:
            log.write(output)
        if "warning:" in output:
            shutil.rmtree(work)  # otherwise, the next build would not repeat the warning
            raise MachineError(f"make in {folder} gave warnings:\n{output[-6000:]}")
    if not (work / product).exists():
        raise MachineError(f"make in {folder} did not build {product}")
    return work / product


def _copy_changed(source: Path, target: Path) -> None:
    """Copy only the source files that differ, so that make rebuilds only after changes."""
    for path in source.rglob("*"):
        copy = target / path.relative_to(source)
        if path.is_dir():
            copy.mkdir(exist_ok=True)
            continue
        if path.name not in SOURCE_NAMES and path.suffix not in SOURCE_SUFFIXES:
            continue
        # NAME.mod.c is generated by modpost if kmod/ was built in place
        if path.name.endswith(".mod.c"):
            continue
        if not copy.exists() or not filecmp.cmp(path, copy, shallow=False):
            shutil.copyfile(path, copy)
