# SPDX-License-Identifier: Apache-2.0
"""The units of real processes."""

from __future__ import annotations

import os

import numpy as np
import pytest

from sentineld.heat import members as members_module
from sentineld.heat import memory as module
from sentineld.heat.members import Members
from sentineld.heat.memory import SessionMemory
from sentineld.heat.spans import SPAN_PAGES
from sentineld.heat.target import OneProcess, Tree
from sentineld.model.records import PAGE_BYTES
from sentineld.observe.memory_use import MemoryUse
from sentineld.policies.temperature.units import Units
from tests.unit.block_process import BLOCK_BYTES, MIB, BlockProcess, block_process

BLOCK_PAGES = BLOCK_BYTES // PAGE_BYTES


def pages_of_block(units: Units, process: BlockProcess, span: int = 0) -> int:
    """Resident pages of the units that lie within the block."""
    first = process.address // PAGE_BYTES + span * SPAN_PAGES
    start = units.numbers * units.size_pages
    inside = (start >= first) & (start + units.size_pages <= first + BLOCK_PAGES)
    return int(units.resident[inside].sum())


def test_locked_memory_has_no_units() -> None:
    with block_process() as process:
        members = Members(OneProcess(process.pid), os.getuid())
        memory = SessionMemory(members)
        memory.refresh()
        everything = pages_of_block(memory.units(resize=True), process)
        assert everything > BLOCK_PAGES - 2 * memory.units().size_pages
        assert memory.use.anonymous_bytes > BLOCK_BYTES
        assert "locked" not in memory.skipped_bytes()
        process.run(f"assert libc.mlock(ctypes.c_void_p(address), {MIB}) == 0")
        memory.refresh()
        assert memory.skipped_bytes()["locked"] == MIB
        left = pages_of_block(memory.units(), process)
        assert everything - left >= MIB // PAGE_BYTES - memory.units().size_pages
        members.close()


def test_pages_that_a_fork_shares_are_counted_once() -> None:
    with block_process() as process:
        members = Members(Tree(process.pid), os.getuid())
        memory = SessionMemory(members)
        memory.refresh()
        alone_bytes = memory.resident_bytes()
        # The child is killed when its parent exits.
        process.run("import os, signal")
        process.run("child = os.fork() or (libc.prctl(1, 9), signal.pause())")
        members.close()
        members = Members(Tree(process.pid), os.getuid())
        assert len(members) == 2
        memory = SessionMemory(members)
        # Until refresh() finds the shared pages, they are counted for both processes.
        assert memory.resident_bytes() > alone_bytes + BLOCK_BYTES
        memory.refresh()
        assert memory.resident_bytes() == pytest.approx(alone_bytes, rel=0.2)
        assert memory.use.anonymous_bytes == pytest.approx(alone_bytes, rel=0.2)
        # The units contain each shared page twice: once in each process's span of page numbers (see
        # heat/spans.py).
        units = memory.units()
        assert pages_of_block(units, process, 0) == pages_of_block(units, process, 1) > 0
        assert memory.repeated_bytes > BLOCK_BYTES
        # Reading the units again finds the same pages.
        runs = memory.runs_of(units.numbers)
        assert runs["pages"].sum() == units.resident.sum() + units.swapped.sum()
        # Both processes map the same page frame, whose number only root may read.
        page = process.address // PAGE_BYTES + 1
        frames = memory.frame_reader(np.array([page, page + SPAN_PAGES]))().tolist()
        assert frames[0] == frames[1]
        assert (frames[0] > 0) == (os.geteuid() == 0)
        process.run("os.kill(child, 9); os.waitpid(child, 0)")
        assert memory.resident_bytes() == pytest.approx(alone_bytes, rel=0.2)
        assert len(members) == 1
        members.close()


def test_units_ascend_if_a_later_member_has_a_smaller_span(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(members_module, "SPANS", 3, raising=False)
    monkeypatch.setattr(members_module, "LOOK_S", 0.0)
    monkeypatch.setattr(members_module, "LOOK_SHARE", 1e9)
    monkeypatch.setattr(members_module, "LOOK_SHARE_MAX", 1e9)
    with block_process() as process:
        process.run("import os, signal")
        process.run("child = os.fork() or (libc.prctl(1, 9), signal.pause())")
        members = Members(Tree(process.pid), os.getuid())
        for _ in range(2):
            members.lose(next(iter(members)))
            members.look()  # the process joins again
        assert [member.span for member in members] == [2, 0]
        memory = SessionMemory(members)
        units = memory.units()
        assert (np.diff(units.numbers) > 0).all()
        assert pages_of_block(units, process, 0) == pages_of_block(units, process, 2) > 0
        members.close()


def test_a_process_that_exits_during_a_refresh_does_not_make_shared_pages_count_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with block_process() as process:
        process.run("import os, signal")
        for name in ("one", "other"):
            process.run(f"{name} = os.fork() or (libc.prctl(1, 9), signal.pause())")
        members = Members(Tree(process.pid), os.getuid())
        assert len(members) == 3
        memory = SessionMemory(members)
        read = module.read_memory_use

        def exit_meanwhile(pid: int) -> MemoryUse:
            if len(members) == 3:
                process.run("os.kill(one, 9); os.waitpid(one, 0)")
            return read(pid)

        monkeypatch.setattr(module, "read_memory_use", exit_meanwhile)
        memory.refresh()
        assert len(members) == 2
        own = read(process.pid).anonymous_bytes
        assert memory.use.anonymous_bytes == pytest.approx(own, rel=0.2)
        process.run("os.kill(other, 9)")
        members.close()
