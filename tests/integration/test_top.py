# SPDX-License-Identifier: Apache-2.0
"""`sentinelctl top` with the real daemon and real trainings on emulated tiers; its keys are
pressed by textual's Pilot."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.cli.output import Daemon as Control
from sentineld.cli.top import record
from sentineld.profile.trace_file import load_trace
from sentineld.top.polling import poll
from tests.integration.test_daemon import Daemon
from tests.integration.test_emulated import REST, TIERS, ManagedRun, wait
from tests.unit.top.watching import View, watch

pytest.importorskip("torch")

INTERVAL_S = 0.2


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

    polled = poll(control(run), run.pid)
    assert polled.reading is not None
    assert polled.reading.tiers == "emulated tiers (cxl)"
    assert polled.reading.cpu_ns > 0
    assert polled.reading.memory_bytes > 10 << 20
    session = polled.reading.session(run.pid)
    assert session is not None
    assert 0 < session.resident_bytes[0] <= session.charged_bytes
    assert session.resident_bytes[1] > 0
    assert session.demoted_bytes > 0
    assert session.predicted_step_ns is not None
    assert session.fast_step_ns is not None
    assert session.predicted_step_ns >= session.fast_step_ns > 0

    # The figures of `residency` add up to the resident bytes of the same moment. Pages can be born
    # or dropped between two requests, but not more than the peak in total.
    residency = polled.residency
    assert residency is not None
    names = [one.layer for one in residency.layers]
    assert len(names) == len(set(names)) > 3
    sums = [one.bytes_by_tier for one in residency.layers] + [residency.other_bytes]
    fast, slow = map(sum, zip(*sums, strict=True))
    assert fast > 0
    assert slow > 0
    assert fast + slow <= 1.1 * session.peak_bytes


def test_keys_act_on_a_managed_training(run: ManagedRun, tmp_path: Path) -> None:
    run.manage("sentinel+spill", "20%")
    trace = tmp_path / "it.npz"

    async def scenario(view: View) -> None:
        await view.until_shown(f"process {run.pid} is managed")
        await view.until_shown("LAYER")
        await view.until_shown("predicted")
        await view.until(lambda: " takes " in view.text(), "the step time")
        assert "up -" not in view.text()

        await view.press("b")
        await view.type("40%")
        await view.press("y")
        await view.until_shown("policy sentinel+spill, fast 40%")
        await view.until(lambda: run.status()["state"] == "managed", "the new plan")
        assert run.status()["fast"] == "40%"

        await view.press("p")
        await view.type("static")
        await view.press("y")
        await view.until_shown("policy static, fast 40%")
        await view.until(lambda: run.status()["state"] == "managed", "the new plan")

        await view.press("m")
        await view.until_shown("of the accesses of step")
        await view.until(lambda: " % metered" in view.text(), "the metered share")

        await view.press("r")
        await view.type(str(trace))
        await view.until(trace.exists, "the trace")
        await view.until_shown("recorded ")

        await view.press("d", "y")
        await view.until_shown(f"detached {run.pid}")
        await view.until_shown(f"process {run.pid} is registered")
        assert "LAYER" not in view.text()

    watch(control(run), scenario, interval_s=INTERVAL_S, record=partial(record, control(run)))
    assert run.status()["state"] == "registered"
    assert load_trace(trace).steps


def test_the_view_survives_the_daemon_and_the_training(run: ManagedRun) -> None:
    run.manage("sentinel+spill")

    async def scenario(view: View) -> None:
        await view.until_shown(f"process {run.pid} is managed")
        run.kill()
        await view.until_shown("no daemon answers")
        await view.press("d", "y")  # the answer is the same error, not a traceback
        run.daemon = Daemon(run.folder, *TIERS)
        await view.until_shown("resumed after the daemon's restart")
        await view.until(lambda: "no daemon answers" not in view.text(), "the answer")
        await view.until(lambda: " takes " in view.text(), "the step time")
        run.training.process.kill()
        run.training.process.wait()
        await view.until_shown("no sessions")
        assert f"process {run.pid}: its session has ended" in view.text()

    watch(control(run), scenario, interval_s=INTERVAL_S)
