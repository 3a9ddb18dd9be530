# SPDX-License-Identifier: Apache-2.0
"""The values that `sentinelctl top` reads from a real daemon; a training runs on emulated tiers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.cli.output import Daemon as Control
from sentineld.top.polling import Polled, poll
from tests.integration.test_emulated import REST, ManagedRun, wait

pytest.importorskip("torch")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[ManagedRun]:
    started = ManagedRun(tmp_path, "transformer", alone=REST)
    yield started
    started.close()


def control(run: ManagedRun) -> Control:
    return Control(run.daemon.control)


def test_readings_agree_with_the_daemon(run: ManagedRun) -> None:
    with pytest.raises(SentinelError, match="has no plan") as error:
        control(run).ask("residency", pid=run.pid)
    assert error.value.code == "wrong-state"
    run.manage("sentinel+spill", "40%")
    wait(lambda: run.status()["promoted_bytes"] > 0)

    def polled_with_residency() -> Polled | None:
        """A poll while a plan is live; None while the daemon enters a corrected plan."""
        found = poll(control(run), str(run.pid))
        return found if found.residency is not None else None

    polled = wait(polled_with_residency)
    assert polled.reading is not None
    assert polled.reading.tiers == "emulated tiers (cxl)"
    assert polled.reading.cpu_ns > 0
    assert polled.reading.memory_bytes > 10 << 20
    session = polled.reading.session(str(run.pid))
    assert session is not None
    assert 0 < session.resident_bytes[0] <= session.charged_bytes
    assert session.resident_bytes[1] > 0
    assert session.demoted_bytes > 0
    assert session.predicted_step_ns is not None
    assert session.fast_step_ns is not None
    assert session.predicted_step_ns >= session.fast_step_ns > 0

    # The figures of `residency` add up to the resident bytes at the moment of this request. Between
    # two requests, pages can be born or dropped, so the sum is compared only with the peak.
    residency = polled.residency
    assert residency is not None
    names = [one.layer for one in residency.layers]
    assert len(names) == len(set(names)) > 3
    sums = [one.bytes_by_tier for one in residency.layers] + [residency.other_bytes]
    fast, slow = map(sum, zip(*sums, strict=True))
    assert fast > 0
    assert slow > 0
    assert fast + slow <= 1.1 * session.peak_bytes
