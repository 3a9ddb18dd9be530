# SPDX-License-Identifier: Apache-2.0
"""Each source file names its licence: GPL-2.0-only if it runs in the kernel or in QEMU, otherwise
Apache-2.0."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

GPL = ("kmod/", "bpf/", "tests/demo/plugin/")
"""Sources that run in the kernel or in QEMU."""

SOURCES = ("*.py", "*.c", "*.h", "*.sh", "*.mk", "Makefile", "*Kbuild", "*.service.in")


def tracked() -> list[str]:
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "--", *SOURCES]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()


def licence_of(path: Path) -> str | None:
    for line in path.read_text().splitlines()[:3]:
        if "SPDX-License-Identifier: " in line:
            return line.split("SPDX-License-Identifier: ")[1].removesuffix("*/").strip()
    return None


def test_sources_are_found() -> None:
    assert len(tracked()) > 40


@pytest.mark.parametrize("name", tracked())
def test_a_source_file_names_its_licence(name: str) -> None:
    path = ROOT / name
    if not path.exists():
        pytest.skip("deleted and not committed yet")
    if path.stat().st_size == 0:
        return  # nothing to license
    expected = "GPL-2.0-only" if name.startswith(GPL) else "Apache-2.0"
    if name == "kmod/sentinel_uapi.h":
        expected += " WITH Linux-syscall-note"
    assert licence_of(path) == expected


def test_the_licence_texts_are_included() -> None:
    assert "Apache License" in (ROOT / "LICENSES/Apache-2.0.txt").read_text()
    assert "GNU GENERAL PUBLIC LICENSE" in (ROOT / "LICENSES/GPL-2.0-only.txt").read_text()
