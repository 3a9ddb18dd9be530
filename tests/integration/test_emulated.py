# SPDX-License-Identifier: Apache-2.0
"""Emulated tiers: an unprivileged real daemon and real trainings under the real shim.

Only page placement is emulated; sessions, plans, the mover's pace and the delays
for slow pages are real. Sampling by the module is tested in tests/vm.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sentineld.base.errors import EXIT_STATUS
from sentineld.host.presets import preset_tiers
from sentineld.model.timing import timing_of
from sentineld.profile.trace import profile_of
from sentineld.profile.trace_file import load_trace
from tests.charged_steps import meter_within
from tests.integration.shim.daemon_side import TRAIN, Training
from tests.integration.shim.place import HERE, Place
from tests.integration.shim.test_compat import TRAINER
from tests.integration.test_daemon import PATIENCE_S, Daemon
from tests.sentinelctl import refused

pytest.importorskip("torch")

TIERS = ("--tiers", "emulated:cxl")
UNPLANNED_BYTES = 32 << 10
REST = ("--rest", "20")
"""Options of a training: sleep 20 ms after each step. The sleep leaves CPU time for the daemon. It
also reduces the number of steps that the comparison run without the shim has to repeat."""


class ManagedRun:
    """A training under the shim, and a daemon that a test can replace with another one.

    alone, script, place: see Training. tiers: options of the daemon. config: see Daemon. daemon: a
    running daemon, which close() does not stop; None: start a daemon.
    """

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        alone: tuple[str, ...] = (),
        tiers: tuple[str, ...] = TIERS,
        config: str = "",
        daemon: Daemon | None = None,
        script: Path = TRAIN,
        place: Place = HERE,
    ) -> None:
        self.folder = folder
        self._shares_daemon = daemon is not None
        self.daemon = daemon or Daemon(folder, *tiers, config=config)
        with ExitStack() as stack:
            stack.callback(self._stop_daemon)
            self.training = Training(
                *arguments,
                socket_path=self.daemon.folder / "shim.sock",
                stop=folder / "stop",
                alone=alone,
                script=script,
                place=place,
            )
            stack.callback(self._kill_training)
            self.pid = self.training.process.pid
            wait(lambda: self.session() is not None)
            self._close = stack.pop_all()

    def session(self, pid: int | None = None) -> dict[str, Any] | None:
        return self.daemon.session(pid or self.pid)

    def status(self) -> dict[str, Any]:
        found = self.session()
        assert found is not None
        return found

    def manage(self, policy: str, fast: str = "20%") -> dict[str, Any]:
        """Attach; wait until the session is managed; return its status."""
        done = self.daemon.ctl("attach", str(self.pid), "--fast", fast, "--policy", policy)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = wait(
            lambda: (now := self.status())["state"] in ("managed", "registered") and now
        )
        assert found["state"] == "managed", found["reason"]
        return found

    def ctl(self, verb: str, *options: str) -> subprocess.CompletedProcess[str]:
        """Run a verb of sentinelctl on the training's process.

        While other tests run, the mover may fall behind and the daemon may enter a corrected plan.
        This method then waits until the plan is live, and runs the verb again.
        """
        command = (verb, str(self.pid), *options)
        while "its state is entering" in (done := self.daemon.ctl(*command)).stderr:
            wait(lambda: self.status()["state"] != "entering")
        return done

    def meter_output(self, *options: str) -> str:
        """The output of `sentinelctl meter`."""
        done = self.ctl("meter", *options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def meter(self, steps: int) -> list[dict[str, Any]]:
        """Meter this number of steps; return the figures of each."""
        answer = json.loads(self.meter_output("--steps", str(steps), "--json"))
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
        self._close.close()

    def _kill_training(self) -> None:
        self.training.process.kill()
        self.training.process.wait(timeout=PATIENCE_S)

    def _stop_daemon(self) -> None:
        if not self._shares_daemon and self.daemon.process.poll() is None:
            self.daemon.stop()


def wait(done: Callable[[], Any]) -> Any:
    """Wait until done() is true; return its value."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not (value := done()):
        assert time.monotonic() < deadline_s, "timed out"
        time.sleep(0.05)
    return value


@pytest.fixture
def run(tmp_path: Path) -> Iterator[ManagedRun]:
    started = ManagedRun(tmp_path, "transformer", alone=REST)
    yield started
    started.close()


def within_budget(step: dict[str, Any], session: dict[str, Any]) -> bool:
    return bool(step["charged_bytes_max"] <= session["budget_bytes"])


def test_a_managed_training_keeps_its_budget_across_a_daemon_restart(run: ManagedRun) -> None:
    status = json.loads(run.daemon.ctl("status", "--json").stdout)
    assert status["emulated"] == "cxl"
    assert "emulated (preset cxl)" in run.daemon.ctl("status").stdout
    session = run.manage("sentinel+spill")
    assert 0 < session["budget_bytes"] < session["peak_bytes"]
    assert json.loads(run.meter_output("--json"))["emulated"] == "cxl"
    for step in meter_within(session["budget_bytes"], lambda: run.meter(4), run.status):
        assert step["moved_bytes"] > 0
        assert 0 < step["fast_accesses"] < step["accesses"]
        assert step["accesses"] == sum(one["accesses"] for one in step["stretches"])
        assert step["delay_owed_ns"] > 0
    assert run.status()["diverged_steps"] == 0
    # This machine has no slow memory, so even RAPL could not measure the energy of slow accesses.
    energy = wait(lambda: run.status()["energy"])
    assert energy["source"] == "modelled"
    assert 0 < energy["joules_per_step"] < 1000
    assert "tiers are emulated (preset cxl)" in run.meter_output()

    layout = run.status()["layout_id"]
    run.kill()
    run.daemon = Daemon(run.folder, *TIERS)
    # Check the resumed plan at once: a correction can later replace it.
    resumed = wait(lambda: (now := run.session()) and now["state"] == "managed" and now)
    assert resumed["reason"] == "resumed after the daemon's restart"
    assert resumed["layout_id"] == layout
    # While no daemon ran, births continued and no pages were demoted, so the budget may be exceeded
    # at first.
    wait(lambda: within_budget(run.meter(1)[0], resumed))
    for step in meter_within(resumed["budget_bytes"], lambda: run.meter(4), run.status):
        assert step["moved_bytes"] > 0
    run.check_losses()


def test_a_new_budget_or_policy_needs_no_new_profile(run: ManagedRun) -> None:
    before = run.manage("sentinel+spill", "40%")
    seen = [before["layout_id"]]
    assert "attached already (policy sentinel+spill, fast 40%)" in refused(
        run.ctl("attach"), "wrong-state"
    )
    assert "infeasible" in refused(run.ctl("attach", "--fast", "1KiB"), "failed")
    for arguments, policy, fast in (
        (("--fast", "25%"), "sentinel+spill", "25%"),
        (("--fast", "50%", "--policy", "static"), "static", "50%"),
        (("--policy", "sentinel+spill"), "sentinel+spill", "50%"),
    ):
        done = run.ctl("attach", *arguments, "--json")
        assert done.returncode == 0, done.stderr
        # Any other state would mean that the process is profiled again.
        assert json.loads(done.stdout)["session"]["state"] in ("entering", "managed")
        wait(lambda: run.status()["state"] == "managed")
        now = run.status()
        assert (now["policy"], now["fast"]) == (policy, fast)
        assert now["layout_id"] not in seen
        seen.append(now["layout_id"])
        assert now["budget_bytes"] == pytest.approx(
            before["budget_bytes"] * int(fast[:-1]) / 40, rel=0.001
        )
        # The bytes of tensors without a slot vary. They are charged, too, and `static` leaves no
        # part of the budget free for them.
        most = now["budget_bytes"] + UNPLANNED_BYTES
        wait(lambda most=most: run.meter(1)[0]["charged_bytes_max"] <= most)
        meter_within(most, lambda: run.meter(3), run.status)
    done = run.ctl("attach", "--fast", "10%", "--policy", "g10")
    assert done.returncode == 0, done.stderr
    wait(lambda: run.status()["state"] == "managed")
    assert run.status()["reason"].endswith("; auto made it, because g10 failed")
    run.check_losses()


def test_the_page_of_the_live_plan_names_the_parameters(run: ManagedRun, tmp_path: Path) -> None:
    run.manage("sentinel+spill", "40%")
    page = tmp_path / "plan.html"
    command = ("plan", "show", str(run.pid), "--html", str(page))
    # While a corrected plan is being entered, no plan is live.
    wait(lambda: run.daemon.ctl(*command).returncode == 0)
    figures = page.read_text().partition('id="data">')[2].partition("</script>")[0]
    data = json.loads(figures)
    assert data["title"] == f"plan of process {run.pid}"
    assert data["plan"]["policy"] == "sentinel+spill"
    assert [name for name in data["tensors"]["name"] if name.endswith(".weight")]
    assert len(data["tensors"]["reasons"]) > 1


def test_slow_pages_cost_the_modelled_delay(run: ManagedRun, tmp_path: Path) -> None:
    run.manage("slow-only")
    steps = run.meter(12)
    file = tmp_path / "it.npz"
    done = run.ctl("record", "-o", str(file), "--steps", "1")
    assert done.returncode == 0, done.stderr
    trace = load_trace(file)
    assert any("emulated (preset cxl)" in note for note in trace.facts["notes"])
    profile = profile_of(trace)
    model_ns = float(timing_of(preset_tiers("cxl", 1)).extra_ns(profile).sum())
    assert model_ns > 0
    for step in steps:
        assert step["fast_accesses"] == 0
        assert step["delay_owed_ns"] == pytest.approx(model_ns, rel=0.001)
    # All delay owed by a step is paid by the end of that step.
    owed_ns = sum(step["delay_owed_ns"] for step in steps[:-1])
    paid_ns = steps[-1]["paid_before_ns"] - steps[0]["paid_before_ns"]
    print(f"owed {owed_ns / 1e6:.3f} ms, paid {paid_ns / 1e6:.3f} ms, model {model_ns / 1e6:.3f}")
    assert [step["step"] for step in steps] == list(
        range(steps[0]["step"], steps[0]["step"] + len(steps))
    )
    assert paid_ns == pytest.approx(owed_ns, rel=0.005)
    run.check_losses()


def test_recurring_shapes_reuse_their_plans(tmp_path: Path) -> None:
    run = ManagedRun(tmp_path, "cnn", "--turns", "250")
    try:
        run.manage("static")
        wait(lambda: run.status()["plans"] == 2)
        layouts = set()
        for _ in range(2):
            wait(
                lambda: (
                    (found := run.status())["layout_id"] not in layouts
                    and found["reason"].startswith("the earlier plan for these steps is live")
                )
            )
            layouts.add(run.status()["layout_id"])
        assert run.status()["plans"] == 2
        run.check_losses()
    finally:
        run.close()


@pytest.mark.parametrize("kind", ["sizes", pytest.param("trainer-padded", marks=pytest.mark.long)])
def test_steps_of_varying_sizes_follow_one_plan(tmp_path: Path, kind: str) -> None:
    if kind == "sizes":
        # Each of a layer norm's statistics takes 4 bytes for each of a sample's 24 tokens (see
        # train.py). With at most 42 samples in a batch, this is less than 4 KiB, and the shim does
        # not see the allocation. Two of these batch sizes are below this limit, two above it.
        sizes = ("--sizes", "36", "40", "44", "48")
        run = ManagedRun(tmp_path, "transformer", *sizes, alone=REST)
    else:
        if reason := HERE.lacking.get("trainer"):
            pytest.skip(reason)
        run = ManagedRun(tmp_path, kind, script=TRAINER)
    try:
        run.manage("sentinel+spill")
        wait(lambda: (now := run.status())["state"] == "managed" and now["sizes_vary"])
        before = run.status()
        assert before["reason"].startswith("the plan for steps of varying sizes is live")
        wait(lambda: run.status()["step"] >= before["step"] + 60)
        now = run.status()
        assert (now["layout_id"], now["state"]) == (before["layout_id"], "managed")
        diverged = now["diverged_steps"] - before["diverged_steps"]
        # The Trainer's batches can be larger than all recorded ones; such steps diverge.
        assert diverged <= (0 if kind == "sizes" else 0.2 * (now["step"] - before["step"]))
        steps = meter_within(now["budget_bytes"], lambda: run.meter(8), run.status)
        assert len({step["accesses"] for step in steps}) > 1
        assert any(step["moved_bytes"] > 0 for step in steps)
        assert "allocations vary" in run.daemon.ctl("plan", "show", str(run.pid)).stdout
        run.check_losses()
    finally:
        run.close()


@pytest.mark.parametrize("tiers", ["cxl", "emulated:", "emulated:cxxl"])
def test_an_unknown_preset_is_refused(tiers: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sentineld.daemon", "--check", "--tiers", tiers],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    code = "bad-config" if tiers == "emulated:cxxl" else "usage"
    assert done.returncode == EXIT_STATUS[code]
    assert "cxl" in refused(done, code)


# No other test may take CPU time, so that movers fall behind only for lack of bandwidth.
@pytest.mark.alone
def test_two_trainings_sharing_bandwidth_get_plans_for_their_share(tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    folder = tmp_path / "config.d"
    folder.mkdir()
    # This bandwidth is so low that the mover's CPU time does not matter.
    configured_bytes_per_s = 60e6
    (folder / "rate.toml").write_text(
        f"[tiers]\nmigration_bytes_per_s = {configured_bytes_per_s}\n"
    )
    run = ManagedRun(tmp_path, "perceptron")
    second = Training("perceptron", socket_path=tmp_path / "shim.sock", stop=tmp_path / "stop")
    try:
        pids = [run.pid, second.process.pid]
        for pid in pids:
            wait(lambda pid=pid: run.session(pid) is not None)
            done = run.daemon.ctl("attach", str(pid), "--fast", "20%", "--policy", "auto")
            assert done.returncode == 0, done.stderr

        corrected: list[dict[str, Any]] = []

        def look() -> bool:
            corrected[:] = [
                one
                for pid in pids
                if (one := run.session(pid)) is not None
                and one["corrections"].get("migration")
                and one["reason"].startswith("the corrected plan is live")
            ]
            return bool(corrected)

        wait(look)
        for one in corrected:
            assert one["migration_bytes_per_s"] < 0.9 * configured_bytes_per_s
            assert one["diverged_steps"] == 0
        run.check_losses()
        losses = second.finish()
        assert losses == second.plain_losses(len(losses))
    finally:
        second.process.kill()
        second.process.wait(timeout=PATIENCE_S)
        run.close()
