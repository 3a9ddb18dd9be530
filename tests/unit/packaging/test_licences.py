# SPDX-License-Identifier: Apache-2.0
"""Each source file names its licence: GPL-2.0-only if the kernel or QEMU loads the code (modules,
eBPF programs, plugins), otherwise Apache-2.0. Files of other projects are unchanged, and their
licence is in the same folder."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

GPL = ("kmod/", "bpf/", "tests/demo/plugin/")
"""Sources of code that the kernel or QEMU loads."""

SOURCES = ("*.py", "*.c", "*.h", "*.sh", "*.mk", "Makefile", "*Kbuild", "*.service.in")
SOURCES += ("*.js", "*.css", "*.html")

VENDORED = {
    "sentineld/report/assets/uplot/uPlot.iife.min.js": (
        "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"
    ),
    "sentineld/report/assets/uplot/uPlot.min.css": (
        "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04"
    ),
}
"""The files of uPlot 1.6.32 (MIT), with the SHA-256 of these files in the project's npm package."""


def tracked() -> list[str]:
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "--", *SOURCES]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()


def licence_of(path: Path) -> str | None:
    for line in path.read_text().splitlines()[:3]:
        if "SPDX-License-Identifier: " in line:
            return (
                line.split("SPDX-License-Identifier: ")[1]
                .removesuffix("*/")
                .removesuffix("-->")
                .strip()
            )
    return None


def test_sources_are_found() -> None:
    assert len(tracked()) > 40


@pytest.mark.parametrize("name", sorted(set(tracked()) - VENDORED.keys()))
def test_a_source_file_names_its_licence(name: str) -> None:
    path = ROOT / name
    if not path.exists():
        pytest.skip("deleted and not committed yet")
    if path.stat().st_size == 0:
        return  # nothing to license
    expected = "GPL-2.0-only" if name.startswith(GPL) else "Apache-2.0"
    if name == "sentineld/report/assets/page.html":
        expected += " AND MIT"  # report pages are made from this file and uPlot
    if name == "kmod/sentinel_uapi.h":
        expected += " WITH Linux-syscall-note"
    assert licence_of(path) == expected


@pytest.mark.parametrize("name", VENDORED)
def test_files_of_other_projects_are_unchanged_and_have_their_licence(name: str) -> None:
    path = ROOT / name
    assert hashlib.sha256(path.read_bytes()).hexdigest() == VENDORED[name]
    assert "The MIT License" in (path.parent / "LICENSE").read_text()


def test_the_licence_texts_are_included() -> None:
    assert "Apache License" in (ROOT / "LICENSES/Apache-2.0.txt").read_text()
    assert "GNU GENERAL PUBLIC LICENSE" in (ROOT / "LICENSES/GPL-2.0-only.txt").read_text()
