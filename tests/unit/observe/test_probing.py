# SPDX-License-Identifier: Apache-2.0
"""Watched processes and recordings of page faults, with fake probes that the tests feed.

tests/vm/test_ebpf.py loads the real probes.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from sentineld.base.errors import SentinelError
from sentineld.model.kernel_events import FAULT_DTYPE
from sentineld.observe import probing
from sentineld.observe.probing import Probing, RecordedFaults

OWN, OTHER = 7, 8


def faults(*times_ns: int, pid: int = OWN) -> Any:
    rows = np.zeros(len(times_ns), FAULT_DTYPE)
    rows["time_ns"], rows["pid"] = times_ns, pid
    return rows


class Probes:
    """A fake of the kernel's side: maps and the ring of faults."""

    def __init__(self) -> None:
        self.notes: list[str] = ["no tracepoint for collapses"]
        self.calls: list[tuple[str, int]] = []
        self.ring: list[Any] = []
        self.dropped = 0
        self.closed = False
        self.refused = 0  # pid of a process that cannot be watched; 0: none

    def start(self, timeout_s: float) -> None:
        assert timeout_s > 0

    def watch(self, pid: int) -> None:
        if pid == self.refused:
            raise SentinelError("failed", "1024 processes are watched already")
        self.calls.append(("watch", pid))

    def unwatch(self, pid: int) -> None:
        self.calls.append(("unwatch", pid))

    def record(self, pid: int) -> None:
        self.calls.append(("record", pid))

    def stop_recording(self, pid: int) -> None:
        self.calls.append(("stop", pid))

    def drain(self) -> Any:
        rows, self.ring = np.concatenate([faults(), *self.ring]), []
        return rows

    def counters(self) -> dict[str, Any]:
        disturbed = {OWN: ["demotion"]}
        return {"dropped": {"fault_records": self.dropped}, "disturbances": disturbed}

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> Probes:
    """Fake probes that load() uses in place of real ones."""
    made = Probes()
    monkeypatch.setattr(probing, "EbpfProbes", lambda: made)
    return made


def test_without_probes_a_process_can_be_watched_but_not_recorded() -> None:
    users = Probing()
    users.watch(os.getpid())
    assert not users.running
    assert (users.counters(), users.notes()) == (None, [])
    assert users.disturbances() == {}
    with pytest.raises(SentinelError, match="not loaded"):
        users.record(os.getpid())
    users.collect(os.getpid(), 0)
    assert len(users.stop_recording(os.getpid()).rows) == 0
    users.unwatch(os.getpid())
    users.close()


def test_processes_watched_before_are_counted_once_the_probes_are_loaded(probes: Probes) -> None:
    users = Probing()
    users.watch(OWN)
    users.watch(OTHER)
    users.unwatch(OTHER)
    users.load(1.0)
    assert users.running
    assert probes.calls == [("watch", OWN)]
    users.watch(OWN)  # already watched, so its counts are kept
    users.unwatch(OWN)
    users.unwatch(OWN)
    assert probes.calls == [("watch", OWN), ("unwatch", OWN)]
    assert users.notes() == probes.notes


def test_a_recording_has_the_processs_own_faults_since_a_time(probes: Probes) -> None:
    users = Probing()
    users.load(1.0)
    users.record(OWN)
    probes.ring = [faults(1, 2, 3), faults(4, pid=OTHER)]
    users.collect(OWN, since_ns=2)
    probes.ring = [faults(5)]
    recorded = users.stop_recording(OWN)
    assert recorded.rows["time_ns"].tolist() == [2, 3, 5]
    assert recorded.lost == 0
    assert probes.calls == [("record", OWN), ("stop", OWN)]
    assert len(users.stop_recording(OWN).rows) == 0


def test_two_processes_are_recorded_at_a_time(probes: Probes) -> None:
    users = Probing()
    users.load(1.0)
    users.record(OWN)
    users.record(OTHER)
    probes.ring = [faults(1), faults(2, pid=OTHER)]
    users.collect(OWN, 0)
    assert users.stop_recording(OTHER).rows["time_ns"].tolist() == [2]
    assert users.stop_recording(OWN).rows["time_ns"].tolist() == [1]


def test_only_losses_during_the_recording_count(probes: Probes) -> None:
    users = Probing()
    users.load(1.0)
    probes.dropped = 100
    users.record(OWN)
    probes.dropped = 103
    assert users.stop_recording(OWN).lost == 3


def test_a_recording_that_ends_after_the_probes_has_their_losses(probes: Probes) -> None:
    users = Probing()
    users.load(1.0)
    probes.dropped = 100
    users.record(OWN)
    probes.ring = [faults(1)]
    users.collect(OWN, 0)
    probes.dropped = 103
    users.close()
    recorded = users.stop_recording(OWN)
    assert recorded.rows["time_ns"].tolist() == [1]
    assert recorded.lost == 3


def test_a_process_that_the_probes_cannot_watch_is_only_not_counted(
    probes: Probes, caplog: pytest.LogCaptureFixture
) -> None:
    users = Probing()
    probes.refused = OWN
    users.watch(OWN)
    users.watch(OTHER)
    users.load(1)
    assert users.running
    users.unwatch(OWN)
    users.watch(OWN)
    assert probes.calls == [("watch", OTHER), ("unwatch", OWN)]
    assert caplog.text.count(f"faults of process {OWN} are not counted: 1024") == 2


def test_a_watched_process_knows_who_disturbs_it(probes: Probes) -> None:
    users = Probing()
    users.load(1.0)
    assert users.disturbances() == {OWN: ["demotion"]}


def test_probes_that_are_loaded_too_late_are_closed(probes: Probes) -> None:
    users = Probing()
    users.close()
    users.load(1.0)
    assert probes.closed
    assert not users.running


def test_closing_detaches_the_probes(probes: Probes) -> None:
    users = Probing()
    users.load(1.0)
    users.close()
    assert probes.closed
    assert users.counters() is None


def test_a_full_recording_counts_what_it_cannot_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "FAULTS_MAX", 5)
    recorded = RecordedFaults()
    recorded.add(faults(1, 2, 3))
    recorded.add(faults(4, 5, 6, 7))
    recorded.add(faults(8))
    assert recorded.rows["time_ns"].tolist() == [1, 2, 3, 4, 5]
    assert recorded.lost == 3
    recorded.forget_before(4)
    recorded.add(faults(9))
    assert recorded.rows["time_ns"].tolist() == [4, 5, 9]


@pytest.mark.parametrize("kept", [3, 10_000])
def test_a_long_recording_has_few_parts(kept: int) -> None:
    """kept: number of faults that are not forgotten."""
    recorded = RecordedFaults()
    for time_ns in range(3000):
        recorded.add(faults(time_ns))
        recorded.forget_before(time_ns - kept)
        assert len(recorded.parts) <= 12  # log2(3000)
    assert recorded.rows["time_ns"].tolist() == list(range(max(2999 - kept, 0), 3000))


def test_faults_from_before_the_recording_are_discarded_when_they_come_late() -> None:
    recorded = RecordedFaults()
    recorded.forget_before(4)
    recorded.add(faults(3, 4))
    assert recorded.rows["time_ns"].tolist() == [4]
    assert recorded.lost == 0
