# SPDX-License-Identifier: Apache-2.0
"""The memory binding that a training reports."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from sentineld.shim.binding import bound_nodes

_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}[platform.machine()]
_PREFERRED, _BIND = 1, 2


def test_a_process_without_a_policy_is_not_bound() -> None:
    assert bound_nodes() == []


@pytest.mark.parametrize(("mode", "nodes"), [(_BIND, [0]), (_PREFERRED, [])])
def test_only_a_binding_is_reported(mode: int, nodes: list[int]) -> None:
    script = (
        "import ctypes; from sentineld.shim.binding import bound_nodes\n"
        f"assert not ctypes.CDLL(None).syscall({_SET_MEMPOLICY}, {mode},"
        " ctypes.byref(ctypes.c_ulong(1)), ctypes.c_ulong(64))\n"
        "print(bound_nodes())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{nodes}\n"
