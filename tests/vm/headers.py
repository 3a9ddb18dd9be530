# SPDX-License-Identifier: Apache-2.0
"""The kernel headers of any Debian suite, downloaded and unpacked in the cache.

With these headers, the compiler of the main image builds the module for the suite's kernel, so no
image of the suite itself is needed. The folder is build/vm/headers-<suite>-<hash of this file>. It
has to be mounted at PLACE in the root tree.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from .host import CACHE, KEYRING, MachineError, phase, require_ready
from .image import PARTIAL_SUFFIX, remove_tree
from .mirror import source_lines
from .recipe import MAIN

PLACE = "/mnt/headers"

APT_CONF = """\
Dir::State "{place}/state";
Dir::State::status "{place}/status";
Dir::Cache "{place}/cache";
Dir::Etc::sourcelist "{place}/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::main "/dev/null";
Dir::Etc::parts "/dev/null";
APT::Architecture "amd64";
APT::Sandbox::User "root";
Acquire::Languages "none";
# Accept package lists that have expired, because some mirrors are not updated daily. Their kernels
# of sid are newer than the stable release's anyway.
Acquire::Check-Valid-Until "false";
"""
"""apt's configuration for one suite, separate from that of this machine."""


def ensure_headers(suite: str) -> Path:
    """The unpacked headers of the suite's newest kernel, from the cache or downloaded."""
    digest = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]
    final = CACHE / f"headers-{suite}-{digest}"
    if final.is_dir():
        return final
    require_ready()
    partial = CACHE / f"{final.name}-{os.getpid()}{PARTIAL_SUFFIX}"
    partial.mkdir(parents=True)
    try:
        with phase(f"kernel headers of Debian {suite}"):
            _download(suite, partial)
        if not final.is_dir():  # another process may have made the folder meanwhile
            partial.rename(final)
    finally:
        if partial.is_dir():
            remove_tree(partial)
    return final


def _download(suite: str, place: Path) -> None:
    for folder in ("state/lists/partial", "cache/archives/partial", "debs"):
        (place / folder).mkdir(parents=True)
    (place / "status").touch()
    (line,) = source_lines(MAIN.suite, (suite,), f"[signed-by={KEYRING}] ")
    (place / "sources.list").write_text(f"{line}\n")
    (place / "apt.conf").write_text(APT_CONF.format(place=place))
    _apt(place, "apt-get", "update", "-qq")
    (headers,) = _depends(place, "linux-headers-amd64", "linux-headers-")
    packages = [headers]
    packages += _depends(place, headers, "linux-headers-")
    packages += _depends(place, headers, "linux-kbuild-")
    _apt(place, "apt-get", "download", "-qq", *packages)
    for package in sorted((place / "debs").iterdir()):
        subprocess.run(["dpkg-deb", "-x", str(package), str(place)], check=True)
    for name in ("state", "cache", "debs"):
        shutil.rmtree(place / name)
    makefile = build_folder(place) / "Makefile"
    makefile.write_text(makefile.read_text().replace("/usr/src/", f"{PLACE}/usr/src/"))


def _depends(place: Path, package: str, prefix: str) -> list[str]:
    """The packages on which a package depends and whose names begin with the prefix."""
    lines = _apt(place, "apt-cache", "depends", package).splitlines()
    names = [line.split()[-1] for line in lines if "Depends:" in line]
    return [name for name in names if name.startswith(prefix)]


def _apt(place: Path, *command: str) -> str:
    result = subprocess.run(
        command,
        cwd=place / "debs",
        env={**os.environ, "APT_CONFIG": str(place / "apt.conf")},
        capture_output=True,
        text=True,
    )
    if result.returncode != 0:
        raise MachineError(f"{' '.join(command)}: {result.stderr.strip()}")
    return result.stdout


def build_folder(headers: Path) -> Path:
    """The folder for make -C in unpacked headers."""
    (build,) = (headers / "usr/src").glob("linux-headers-*-amd64")
    return build
