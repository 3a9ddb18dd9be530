# SPDX-License-Identifier: Apache-2.0
"""The figures of paged tiers, and the file and budget that a process gets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from sentineld.base.errors import SentinelError
from sentineld.base.units import FastBudget
from sentineld.config import TierOverrides
from sentineld.machine import paged as module
from sentineld.machine.paged import FILE_ALIGN_BYTES, RESERVE_BYTES_MIN, PagedSubstrate
from sentineld.machine.substrate import NO_PROVISION
from sentineld.migrate.disk_speed import DiskRates
from sentineld.model.plan import Space
from sentineld.model.timing import FAULT_BYTES, timing_of
from sentineld.observe.residency_segment import ResidencySegment
from tests.unit.links import Linked
from tests.unit.plan.toys import toy_plan, toy_profile

MIB = 1 << 20


@pytest.fixture(autouse=True)
def disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that reads 1 GB/s and writes 3 GB/s, on a kernel that can move pages. A fault takes
    80 us in addition to its transfer, which takes FAULT_BYTES ns at 1 GB/s."""
    monkeypatch.setattr(module, "require_move", lambda: None)
    found = DiskRates(1e9, 3e9, fault_ns=FAULT_BYTES + 80e3, wake_ns=30e3)
    monkeypatch.setattr(module, "measure_disk", lambda _: found)


@pytest.fixture
def substrate(tmp_path: Path) -> PagedSubstrate:
    return PagedSubstrate(TierOverrides(paged=str(tmp_path)))


@pytest.fixture
def linked() -> Iterator[Linked]:
    made = Linked(heap_used=100 * MIB)
    yield made
    made.link.close()


def test_a_folder_that_the_daemon_may_not_see_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(_: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_dir", denied)
    with pytest.raises(SentinelError, match="Permission denied") as caught:
        PagedSubstrate(TierOverrides(paged=str(tmp_path)))
    assert caught.value.code == "bad-config"
    assert "/home" in caught.value.hint


def test_the_disk_is_the_slow_tier(substrate: PagedSubstrate, tmp_path: Path) -> None:
    tiers = substrate.tiers()
    assert (tiers.paged, tiers.source) == (True, "paged")
    assert [tier.nodes for tier in tiers.tiers] == [(0,), (1,)]
    assert tiers.tiers[1].read_bytes_per_s == 1e9
    assert tiers.migration_bytes_per_s == pytest.approx(1.5e9)
    assert tiers.tiers[1].read_latency_ns == pytest.approx(80e3)
    assert tiers.tiers[1].wake_ns == 30e3
    given = TierOverrides(paged=str(tmp_path), slow_read_bytes_per_s=2e9, paged_bytes=7 * MIB)
    slow = PagedSubstrate(given).tiers().tiers[1]
    assert (slow.read_bytes_per_s, slow.write_bytes_per_s) == (2e9, 3e9)
    assert slow.read_latency_ns == pytest.approx(80e3 + FAULT_BYTES / 2)
    unmeasured = replace(given, slow_write_bytes_per_s=1e9)
    assert PagedSubstrate(unmeasured).tiers().tiers[1].read_latency_ns == 0
    assert slow.capacity_bytes == 7 * MIB


def test_an_access_to_the_file_costs_a_read_of_its_pages(substrate: PagedSubstrate) -> None:
    profile = toy_profile()
    # All pages of an access are read in one fault, which has a latency of 80 us (see disk()).
    extra_ns = timing_of(substrate.tiers()).extra_ns(profile) - 80e3
    rows = profile.accesses
    used = np.maximum(rows["bytes_read"], rows["bytes_written"])
    whole = np.ceil(used / profile.page_bytes) * profile.page_bytes
    assert (extra_ns <= whole * 1.0 + 1e-6).all()
    assert (extra_ns >= used * 1.0 - 1e-6).all()


@pytest.mark.parametrize(
    "figures", [{"fast": (0,)}, {"slow": (1,)}, {"paged": "/nowhere"}, {"paged": "/etc/passwd"}]
)
def test_an_invalid_table_is_refused(tmp_path: Path, figures: dict[str, str]) -> None:
    with pytest.raises(SentinelError) as caught:
        PagedSubstrate(replace(TierOverrides(paged=str(tmp_path)), **figures))
    assert caught.value.code == "bad-config"
    assert caught.value.hint


def test_the_reserve_is_a_small_part_of_any_budget(substrate: PagedSubstrate) -> None:
    assert substrate.reserve_bytes(1 << 30) == 64 * MIB
    assert substrate.reserve_bytes(20 * MIB) == RESERVE_BYTES_MIN
    assert substrate.reserve_bytes(4 * MIB) == MIB
    plan = replace(toy_plan(), budget_bytes=(1 << 30) - 64 * MIB)
    assert substrate.fast_pages(plan, 1 << 30, 4096) == (1 << 30) // 4096


def test_accesses_are_metered_but_not_delayed(substrate: PagedSubstrate) -> None:
    layout, profile = toy_plan().layout, toy_profile()
    sent = substrate.accesses(layout, profile, substrate.tiers())
    assert sent is not None
    assert len(sent) == len(profile.accesses)
    assert not sent["slow_ps"].any()
    nothing = substrate.accesses(layout, None, substrate.tiers())
    assert nothing is not None
    assert len(nothing) == 0


def test_a_process_gets_a_file_with_room_for_its_tensors(
    substrate: PagedSubstrate, linked: Linked, tmp_path: Path
) -> None:
    layout = replace(toy_plan().layout, arena_bytes=100 * MIB)
    with substrate.provision(linked.link, layout) as provision:
        size_bytes = provision.fields["paging"]["file_bytes"]
        most_bytes = provision.fields["paging"]["file_bytes_max"]
        assert provision.fields == {
            "paging": {"file_bytes": size_bytes, "file_bytes_max": most_bytes, "file": True}
        }
        assert most_bytes >= size_bytes
        assert size_bytes >= 250 * MIB
        assert size_bytes % FILE_ALIGN_BYTES == 0
        file, wake = provision.fds
        status = os.fstat(file)
        assert (status.st_size, status.st_nlink) == (size_bytes, 0)
        assert status.st_blocks * 512 >= size_bytes
        assert status.st_mode & 0o777 == 0o600
        os.eventfd_write(wake, 1)
    assert not list(tmp_path.iterdir())
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)


def test_a_file_may_grow_by_the_room_on_the_disk(
    substrate: PagedSubstrate, linked: Linked, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Running:
        def counts(self) -> SimpleNamespace:
            return SimpleNamespace(file_bytes=600 * MIB)

    usage = SimpleNamespace(free=400 * MIB)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: usage)
    monkeypatch.setattr(type(linked.link), "paging", Running())
    with substrate.provision(linked.link, toy_plan().layout) as provision:
        paging = provision.fields["paging"]
    assert (paging["file"], paging["file_bytes_max"]) == (False, 1000 * MIB)


@pytest.mark.parametrize(
    ("fast", "budget_bytes"), [("20%", 600 * MIB), ("48MiB", 48 * MIB), ("1000", 4096)]
)
def test_a_process_that_will_be_attached_gets_a_pager_at_once(
    substrate: PagedSubstrate,
    linked: Linked,
    monkeypatch: pytest.MonkeyPatch,
    fast: str,
    budget_bytes: int,
) -> None:
    monkeypatch.setattr(module, "available_bytes", lambda _: 800 * MIB)
    with substrate.first_provision(linked.link, FastBudget.parse(fast)) as provision:
        paging = provision.fields["paging"]
        assert paging["budget_pages"] == budget_bytes // 4096
        assert paging["file"] is True
        assert os.fstat(provision.fds[0]).st_size == paging["file_bytes"]
        assert paging["file_bytes"] < paging["file_bytes_max"]
    with substrate.first_provision(linked.link, None) as provision:
        assert provision == NO_PROVISION


def test_a_file_beyond_the_limit_is_refused(tmp_path: Path, linked: Linked) -> None:
    limited = PagedSubstrate(TierOverrides(paged=str(tmp_path), paged_bytes=MIB))
    with (
        pytest.raises(SentinelError, match=r"tiers.paged_bytes is 1.0 MiB"),
        limited.provision(linked.link, toy_plan().layout),
    ):
        pass


@pytest.mark.parametrize(
    ("arena_pages", "heap_pages", "problem"),
    [(3, 9, ""), (1 << 20, 9, "map of the arena"), (2, 9, "arena"), (3, 1, "map of the heap")],
)
def test_a_residency_map_of_an_impossible_length_is_refused(
    substrate: PagedSubstrate,
    linked: Linked,
    arena_pages: int,
    heap_pages: int,
    problem: str,
) -> None:
    maps = {
        Space.ARENA: np.zeros(arena_pages, np.uint8),
        Space.HEAP: np.zeros(heap_pages, np.uint8),
    }
    paging = SimpleNamespace(close=lambda: None)
    found = SimpleNamespace(maps=maps, paging=paging, page_bytes=4096, close=lambda: None)
    linked.link.residency = cast(ResidencySegment, found)
    spaces = {Space.ARENA: (1 << 30, 3 * 4096), Space.HEAP: (1 << 40, 2 * 4096)}
    tiers = substrate.tiers()
    if problem:
        with pytest.raises(SentinelError, match=problem):
            substrate.memory(linked.link, spaces, tiers)
    else:
        substrate.memory(linked.link, spaces, tiers).close()
