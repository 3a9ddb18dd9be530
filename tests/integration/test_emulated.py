# SPDX-License-Identifier: Apache-2.0
"""Emulated tiers: the real daemon as any user starts it, real trainings under the real shim.

Everything but the pages' places is real here: sessions, plans, the mover's
pace, the time that slow pages cost. The module's word is tests/vm's.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sentineld.base.errors import EXIT_STATUS
from sentineld.host.presets import preset_tiers
from sentineld.model.timing import timing_of
from sentineld.profile.trace import profile_of
from sentineld.profile.trace_file import load_trace
from tests.integration.shim.daemon_side import Training
from tests.integration.test_daemon import Daemon, refused

pytest.importorskip("torch")

TIERS = ("--tiers", "emulated:cxl")
PATIENCE_S = 180
UNPLANNED_BYTES = 32 << 10


class Life:
    """A training, and the daemons that follow each other beside it."""

    def __init__(self, folder: Path, *arguments: str, alone: tuple[str, ...] = ()) -> None:
        """alone: see Training."""
        self.folder = folder
        self.daemon = Daemon(folder, *TIERS)
        self.training = Training(
            *arguments, socket_path=folder / "shim.sock", stop=folder / "stop", alone=alone
        )
        self.pid = self.training.process.pid
        wait(lambda: self.session() is not None)

    def session(self, pid: int | None = None) -> dict[str, Any] | None:
        done = self.daemon.ctl("status", "--json")
        sessions = json.loads(done.stdout)["sessions"] if done.returncode == 0 else []
        return next((one for one in sessions if one["pid"] == (pid or self.pid)), None)

    def now(self) -> dict[str, Any]:
        found = self.session()
        assert found is not None
        return found

    def manage(self, policy: str, fast: str = "20%") -> dict[str, Any]:
        """Attach, and wait until it is managed."""
        done = self.daemon.ctl("attach", str(self.pid), "--fast", fast, "--policy", policy)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = wait(
            lambda: (now := self.now())["state"] in ("managed", "registered") and now
        )
        assert found["state"] == "managed", found["reason"]
        return found

    def meter(self, steps: int) -> list[dict[str, Any]]:
        """Once it is managed: beside other tests a mover falls behind, and another plan is
        entered."""
        verb = ("meter", str(self.pid), "--steps", str(steps), "--json")
        done = self.daemon.ctl(*verb)
        while "it is entering" in done.stderr:
            wait(lambda: self.now()["state"] != "entering")
            done = self.daemon.ctl(*verb)
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert answer["emulated"] == "cxl"
        metered: list[dict[str, Any]] = answer["steps"]
        assert len(metered) == steps
        return metered

    def kill(self) -> None:
        self.daemon.process.kill()
        self.daemon.process.wait(timeout=PATIENCE_S)
        assert self.daemon.process.stderr is not None
        self.daemon.process.stderr.close()

    def check_losses(self) -> None:
        losses = self.training.finish()
        assert len(losses) > 5
        assert losses == self.training.plain_losses(len(losses))

    def close(self) -> None:
        self.training.process.kill()
        self.training.process.wait(timeout=PATIENCE_S)
        if self.daemon.process.poll() is None:
            self.daemon.stop()


def wait(done: Callable[[], Any]) -> Any:
    """What done() gives once it is true."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not (value := done()):
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.1)
    return value


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    begun = Life(tmp_path, "transformer")
    yield begun
    begun.close()


def within_budget(step: dict[str, Any], session: dict[str, Any]) -> bool:
    return bool(step["charged_bytes_max"] <= session["budget_bytes"])


def test_a_managed_training_keeps_its_budget_and_outlives_its_daemon(life: Life) -> None:
    status = json.loads(life.daemon.ctl("status", "--json").stdout)
    assert status["emulated"] == "cxl"
    assert "emulated (preset cxl)" in life.daemon.ctl("status").stdout
    session = life.manage("sentinel")
    assert 0 < session["budget_bytes"] < session["peak_bytes"]
    for step in life.meter(4):
        assert step["moved_bytes"] > 0
        assert within_budget(step, session)
        assert 0 < step["fast_accesses"] < step["accesses"]
        assert step["accesses"] == sum(one["accesses"] for one in step["stretches"])
        assert step["delay_owed_ns"] > 0
    assert life.now()["diverged_steps"] == 0
    assert "emulated tiers (preset cxl)" in life.daemon.ctl("meter", str(life.pid)).stdout

    layout = life.now()["layout_id"]
    life.kill()
    life.daemon = Daemon(life.folder, *TIERS)
    wait(lambda: life.session() is not None and life.now()["state"] == "managed")
    resumed = life.now()
    assert resumed["reason"] == "resumed after the daemon's restart"
    assert resumed["layout_id"] == layout
    # Pages stay where they were, and births went on without anybody who demoted.
    wait(lambda: within_budget(life.meter(1)[0], resumed))
    for step in life.meter(4):
        assert step["moved_bytes"] > 0
        assert within_budget(step, resumed)
    life.check_losses()


def test_another_budget_takes_no_new_profile(life: Life) -> None:
    def attach(*arguments: str) -> subprocess.CompletedProcess[str]:
        done = life.daemon.ctl("attach", str(life.pid), *arguments)
        while "it is entering" in done.stderr:  # beside other tests plans are corrected
            done = life.daemon.ctl("attach", str(life.pid), *arguments)
        return done

    before = life.manage("sentinel", "40%")
    seen = [before["layout_id"]]
    assert "attached already (policy sentinel, fast 40%)" in refused(attach(), "wrong-state")
    assert "infeasible" in refused(attach("--fast", "1KiB"), "failed")
    for arguments, policy, fast in (
        (("--fast", "25%"), "sentinel", "25%"),
        (("--fast", "50%", "--policy", "static"), "static", "50%"),
        (("--policy", "sentinel"), "sentinel", "50%"),
    ):
        done = attach(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        # Else it would have to be profiled first.
        assert json.loads(done.stdout)["session"]["state"] in ("entering", "managed")
        wait(lambda: life.now()["state"] == "managed")
        now = life.now()
        assert (now["policy"], now["fast"]) == (policy, fast)
        assert now["layout_id"] not in seen
        seen.append(now["layout_id"])
        assert now["budget_bytes"] == pytest.approx(
            before["budget_bytes"] * int(fast[:-1]) / 40, rel=0.001
        )
        # Tensors that no plan has come and go, and `static` leaves no room for more of them.
        most = now["budget_bytes"] + UNPLANNED_BYTES
        wait(lambda most=most: life.meter(1)[0]["charged_bytes_max"] <= most)
        assert all(step["charged_bytes_max"] <= most for step in life.meter(3))
    life.check_losses()


def test_slow_pages_cost_what_the_model_says(life: Life, tmp_path: Path) -> None:
    life.manage("slow-only")
    steps = life.meter(12)
    file = tmp_path / "it.npz"
    done = life.daemon.ctl("record", str(life.pid), "-o", str(file), "--steps", "1")
    assert done.returncode == 0, done.stderr
    trace = load_trace(file)
    assert any("emulated (preset cxl)" in note for note in trace.facts["notes"])
    profile = profile_of(trace)
    model_ns = float(timing_of(preset_tiers("cxl", 1)).extra_ns(profile).sum())
    assert model_ns > 0
    for step in steps:
        assert step["fast_accesses"] == 0
        assert step["delay_owed_ns"] == pytest.approx(model_ns, rel=0.001)
    # What is waited for, from step to step: all of it is paid when a step ends.
    owed_ns = sum(step["delay_owed_ns"] for step in steps[:-1])
    paid_ns = steps[-1]["paid_before_ns"] - steps[0]["paid_before_ns"]
    print(f"owed {owed_ns / 1e6:.3f} ms, paid {paid_ns / 1e6:.3f} ms, model {model_ns / 1e6:.3f}")
    assert [step["step"] for step in steps] == list(
        range(steps[0]["step"], steps[0]["step"] + len(steps))
    )
    assert paid_ns == pytest.approx(owed_ns, rel=0.005)
    life.check_losses()


def test_shapes_that_come_again_find_their_plans(tmp_path: Path) -> None:
    life = Life(tmp_path, "cnn", "--turns", "150")
    try:
        life.manage("static")
        wait(lambda: life.now()["plans"] == 2)
        layouts = set()
        for _ in range(2):
            wait(
                lambda: (
                    (found := life.now())["layout_id"] not in layouts
                    and found["reason"].startswith("the earlier plan for these steps is live")
                )
            )
            layouts.add(life.now()["layout_id"])
        assert life.now()["plans"] == 2
        life.check_losses()
    finally:
        life.close()


@pytest.mark.parametrize("tiers", ["cxl", "emulated:", "emulated:cxxl"])
def test_a_preset_that_there_is_not_is_refused(tiers: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sentineld.daemon", "--check", "--tiers", tiers],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    code = "bad-config" if tiers == "emulated:cxxl" else "usage"
    assert done.returncode == EXIT_STATUS[code]
    assert "cxl" in refused(done, code)


# Movers that share two CPUs with other tests fall behind for other reasons, too.
@pytest.mark.alone
def test_two_trainings_that_share_the_bandwidth_get_plans_for_their_part(tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    folder = tmp_path / "config.d"
    folder.mkdir()
    # So little that the mover's own work does not count beside it.
    promised = 60e6
    (folder / "rate.toml").write_text(f"[tiers]\nmigration_bytes_per_s = {promised}\n")
    life = Life(tmp_path, "perceptron")
    second = Training("perceptron", socket_path=tmp_path / "shim.sock", stop=tmp_path / "stop")
    try:
        pids = [life.pid, second.process.pid]
        for pid in pids:
            wait(lambda pid=pid: life.session(pid) is not None)
            done = life.daemon.ctl("attach", str(pid), "--fast", "20%", "--policy", "auto")
            assert done.returncode == 0, done.stderr

        corrected: list[dict[str, Any]] = []

        def look() -> bool:
            corrected[:] = [
                one
                for pid in pids
                if (one := life.session(pid)) is not None
                and one["corrections"].get("migration")
                and one["reason"].startswith("the corrected plan is live")
            ]
            return bool(corrected)

        wait(look)
        for one in corrected:
            assert one["migration_bytes_per_s"] < 0.9 * promised
            assert one["diverged_steps"] == 0
        life.check_losses()
        losses = second.finish()
        assert losses == second.plain_losses(len(losses))
    finally:
        second.process.kill()
        second.process.wait(timeout=PATIENCE_S)
        life.close()
