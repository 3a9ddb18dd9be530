# SPDX-License-Identifier: Apache-2.0
"""Runs the unit tests of process trees with Debian 13's kernel, Python and pyroute2."""

from __future__ import annotations

import re

import pytest

from .guest import TREE, Guest

pytestmark = [pytest.mark.guest, pytest.mark.second]


def test_no_unit_test_of_process_trees_fails_or_is_skipped(guest: Guest) -> None:
    # If a test hangs, pytest prints where each thread is, before `timeout` ends pytest.
    result = guest.run(
        f"cd {TREE} && PYTHONPATH={TREE} timeout 300 python3 -m pytest -q"
        " --confcutdir=tests/unit/observe -p no:cacheprovider -o addopts="
        " -o faulthandler_timeout=120 --import-mode=importlib tests/unit/observe/test_procs.py",
        check=False,
        timeout=600,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"^\d+ passed", result.stdout.splitlines()[-1]), result.stdout
