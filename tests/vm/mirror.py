# SPDX-License-Identifier: Apache-2.0
"""Lines of sources.list for Debian suites, with the mirror that mmdebstrap uses by default."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

from .host import MachineError


def source_lines(release: str, suites: tuple[str, ...], options: str = "") -> list[str]:
    """Lines of sources.list, one for each suite, all with mmdebstrap's default mirror for RELEASE.

    release: a suite that mmdebstrap knows by name. Its default mirror must also have SUITES.
    options: put into each line, such as "[signed-by=FILE] ".
    """
    mirror = _default_mirror(release)
    return [f"deb {options}{mirror} {suite} main" for suite in suites]


def _default_mirror(release: str) -> str:
    """The address of the mirror in the sources.list that mmdebstrap writes for a release."""
    with tempfile.TemporaryDirectory() as name:
        written = Path(name) / "sources.list"
        # The hook fails on purpose, so that mmdebstrap ends before it downloads anything.
        hook = f'cp "$1/etc/apt/sources.list" "{written}"; exit 1'
        options = ("--mode=root", "--variant=minbase", "--format=directory")
        command = ["mmdebstrap", *options, f"--setup-hook={hook}", release, f"{name}/root"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        text = written.read_text() if written.exists() else ""
    found = re.search(rf"^deb .*?(\S+://\S+) {release} main$", text, re.MULTILINE)
    if found is None:
        raise MachineError(f"mmdebstrap has no mirror for {release}:\n{done.stderr}{text}")
    return found[1]
