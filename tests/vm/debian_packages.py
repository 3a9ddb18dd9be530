# SPDX-License-Identifier: Apache-2.0
"""The Debian packages that `make deb` builds, in two versions; conftest.py imports the fixture."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from .host import REPOSITORY

PACKAGES = ("python3-sentineld-shim", "sentinel-dkms", "sentineld")
VERSIONS = ("0.1.0~1", "0.1.0~2")


def build(folder: Path, version: str) -> dict[str, Path]:
    """The packages of this version, by their names. `make deb` fails if lintian emits a tag."""
    done = subprocess.run(
        ["make", "deb", f"DEB={folder}", f"DEB_VERSION={version}"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = {path.name.split("_")[0]: path for path in folder.glob("*.deb")}
    return {name: found[name] for name in PACKAGES}


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Path]]:
    """The packages of both versions."""
    return [build(tmp_path_factory.mktemp("deb") / "out", version) for version in VERSIONS]
