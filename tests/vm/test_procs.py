# SPDX-License-Identifier: Apache-2.0
"""Process trees on Debian 13's kernel, Python and pyroute2: the unit tests, none skipped."""

from __future__ import annotations

import re

import pytest

from .guest import TREE, Guest

pytestmark = pytest.mark.guest


def test_process_trees(guest: Guest) -> None:
    result = guest.run(
        f"cd {TREE} && PYTHONPATH={TREE} python3 -m pytest -q --noconftest -p no:cacheprovider"
        " -o addopts= --import-mode=importlib tests/unit/observe/test_procs.py",
        check=False,
        timeout=600,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"^\d+ passed", result.stdout.splitlines()[-1]), result.stdout
