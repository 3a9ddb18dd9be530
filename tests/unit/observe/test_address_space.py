# SPDX-License-Identifier: Apache-2.0
"""The address spaces of real processes."""

from __future__ import annotations

import os
import subprocess

import pytest

from sentineld.observe import address_space as module
from sentineld.observe.address_space import same_address_space
from sentineld.observe.pidfd import children
from tests.unit.block_process import block_process, child_in_same_memory


def test_a_child_of_vfork_has_the_address_space_of_its_parent() -> None:
    with block_process() as process, child_in_same_memory(process) as child:
        assert same_address_space(child, process.pid)
        assert not same_address_space(child, os.getpid())


def test_a_forked_child_has_an_address_space_of_its_own() -> None:
    with block_process() as process:
        process.run("import os, signal; child = os.fork() or signal.pause()")
        (child,) = children(process.pid)
        assert not same_address_space(child, process.pid)
        os.kill(child, 9)


def test_a_process_that_has_exited() -> None:
    process = subprocess.Popen(["/bin/true"])
    process.wait()
    assert not same_address_space(process.pid, os.getpid())


def test_an_unknown_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.platform, "machine", lambda: "riscv64")
    assert not same_address_space(os.getpid(), os.getpid())
