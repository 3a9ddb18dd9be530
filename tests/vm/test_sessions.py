# SPDX-License-Identifier: Apache-2.0
"""A real training under the installed daemon: recorded, managed, resumed and detached."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.charged_steps import meter_within
from tests.sentinelctl import SENTINELCTL
from tests.sentinelctl import refused as refused_outside
from tests.stall_trials import decisions_in_time

from .guest import TREE, Guest
from .prometheus import (
    PATIENCE_S,
    WHILE_MANAGED,
    check_metrics,
    prometheus,
    query,
    wait_for_data,
)
from .rootfs import in_root
from .ssh import GuestProcess
from .training import (
    LOG,
    NO_EBPF,
    PORTABLE,
    TRAINING,
    WITHOUT_EBPF,
    Training,
    metrics,
    refused,
    states,
    wait,
    wait_for_probes,
)

pytestmark = pytest.mark.guest


PLACED = {"blocks.0.gate.weight": "fast", "blocks.1.gate.weight": "slow"}
"""The tier of each parameter that the script places."""
PLACED_BYTES = 64 * 256 * 4
"""Size of each of these parameters."""


@pytest.fixture(scope="module")
def training(daemon: Guest) -> Iterator[Training]:
    """The training of this file's tests. The first test stops the command `sentinelctl run` by
    SIGSTOP, because this command polls the daemon, which takes CPU time."""
    options = "--fast 30% --limit 1GiB --policy sentinel+spill"
    placed = " ".join(f"--place {name} {tier}" for name, tier in PLACED.items())
    started = Training(
        daemon, f"{PORTABLE} sentinelctl run {options} -- python3", f"{TRAINING} {placed}"
    )
    yield started
    started.process.send_remote("CONT")
    started.end()


def test_run_attaches_the_training(training: Training) -> None:
    guest, pid = training.guest, training.pid

    def attached() -> bool:
        session = training.session()
        return session is not None and session["fast"] == "30%"

    wait("attached", attached, 240)
    training.process.send_remote("STOP")
    limit = f"cat /sys/fs/cgroup$(cut -d: -f3 /proc/{pid}/cgroup)/memory.max"
    assert int(guest.run(limit).stdout) == 1 << 30
    # The following tests need a process that is not attached.
    guest.run(f"sentinelctl detach {pid}")
    assert training.in_state("registered")


def test_a_budget_larger_than_the_tier_is_refused(training: Training) -> None:
    refused(training.guest, f"sentinelctl attach {training.pid} --fast 900GiB", "budget-too-large")
    assert training.in_state("registered")


def test_an_unknown_policy_is_refused(training: Training) -> None:
    line = refused(
        training.guest, f"sentinelctl attach {training.pid} --policy sentinell", "unknown-policy"
    )
    assert "sentinel" in line
    assert training.in_state("registered")


def test_other_users_are_refused(training: Training) -> None:
    guest = training.guest
    guest.run("id trainer 2>/dev/null || useradd -G sentineld trainer")
    refused(guest, f"runuser -u trainer -- sentinelctl attach {training.pid}", "not-permitted")
    guest.run("id stranger 2>/dev/null || useradd stranger")
    refused(guest, "runuser -u stranger -- sentinelctl status", "not-permitted")
    assert training.in_state("registered")


def report(file: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `sentinelctl report` outside the guest, where it is much faster."""
    return subprocess.run(
        [*SENTINELCTL, "report", str(file), *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "120"},
        timeout=120,
    )


def reported(file: Path, *arguments: str) -> str:
    """The output of a report that must succeed."""
    done = report(file, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path for the recorded trace of the unmanaged process."""
    return tmp_path_factory.mktemp("traces") / "plain.npz"


def recorded(training: Training, file: Path, seen_share: float = 0.99) -> dict[str, Any]:
    """Record two steps; returns the trace's summary. Nearly all accesses must be attributed.

    file: where the trace is put, outside the guest.
    seen_share: the module must have seen at least this fraction of the accesses that the shim
        reported.
    """
    guest = training.guest
    wait_for_probes(guest)
    guest.run(f"sentinelctl record {training.pid} -o /tmp/{file.name} --steps 2", timeout=900)
    guest.get(f"/tmp/{file.name}", file)
    inside = json.loads(guest.run(f"sentinelctl report /tmp/{file.name} summary --json").stdout)
    summary: dict[str, Any] = json.loads(reported(file, "summary", "--json"))
    for kind, tensors in summary["tensors"].items():
        assert inside["tensors"][kind]["count"] == tensors["count"]
    assert summary["facts"]["notes"] == []
    assert summary["coverage"]["source"] == "module+shim"
    assert summary["facts"]["faults_recorded"]
    assert summary["faults"] is not None
    assert summary["coverage"]["attributed_share"] >= 0.99, summary["unattributed"]
    agreement = json.loads(reported(file, "agreement", "--json"))
    assert agreement["pairs"] >= 100
    assert agreement["seen_share"] >= seen_share, agreement["differences"]
    assert summary["tensors"]["parameter"]["count"] >= 6  # two blocks, each with at least 3
    assert summary["tensors"]["optimizer"]["count"] >= 6
    return summary


def test_a_registered_process_is_recorded(training: Training, trace: Path) -> None:
    summary = recorded(training, trace)
    assert not summary["facts"]["managed"]
    assert summary["cuts"] > 0
    session = training.session()
    assert session is not None
    assert (session["state"], session["reason"]) == ("registered", "recorded")
    training.expect_another_step()


def test_reports_of_a_recorded_trace(trace: Path) -> None:
    listed = json.loads(reported(trace, "tensors", "--json"))["tensors"]
    tensors = {row["name"]: row for row in listed}
    gate = tensors["blocks.1.gate.weight"]
    assert gate["kind"] == "parameter"
    assert gate["page_accesses"] >= 3 * gate["bytes"] // 4096  # forward, backward, optimizer
    assert gate["bytes_read"] >= 3 * gate["bytes"]
    assert "█" in reported(trace, "heatmap")
    assert "parameter" in reported(trace, "timeline")
    exported = trace.with_suffix(".json")
    assert "wrote" in reported(trace, "trace-export", "-o", str(exported))
    refused_outside(report(exported, "tensors"), "failed")


def test_an_attached_process_becomes_managed(training: Training) -> None:
    training.guest.run(f"sentinelctl attach {training.pid} --fast 35% --policy sentinel+spill")
    wait("managed", lambda: training.in_state("managed"), 600)
    session = training.session()
    assert session is not None
    assert session["policy"] == "sentinel+spill"
    assert 0 < session["budget_bytes"] < session["peak_bytes"]
    refused(training.guest, f"sentinelctl attach {training.pid}", "wrong-state")


def test_metered_steps_stay_within_the_budget_while_pages_move(training: Training) -> None:
    session = training.session()
    assert session is not None
    steps = training.meter_within(session["budget_bytes"], 3)
    assert len(steps) == 3
    for step in steps:
        assert step["moved_bytes"] > 0
        assert step["unknown_node"] <= 0.01 * step["accesses"]
        assert step["accesses"] == sum(one["accesses"] for one in step["stretches"])
    # All steps touch the same pages. Counts differ only because pages in flight are not sampled.
    assert max(s["accesses"] for s in steps) <= 1.1 * min(s["accesses"] for s in steps)


SCRAPES = 12


def test_the_charge_is_within_the_budget_in_every_scrape(training: Training) -> None:
    session = training.session()
    assert session is not None

    def scrape() -> list[dict[str, Any]]:
        pages = []
        for _ in range(SCRAPES):
            pages.append(metrics(training.guest))
            time.sleep(1.5)  # more frequent scrapes delay the moves, so that barriers time out
        charged, budgets = (
            list(map(float, re.findall(rf"^{name}{{.*}} (\S+)$", "".join(pages), re.MULTILINE)))
            for name in ("sentineld_charged_bytes", "sentineld_budget_bytes")
        )
        assert len(charged) == len(budgets) == SCRAPES
        assert max(charged) > 0
        return [{"charged_bytes_max": value} for value in charged]

    meter_within(session["budget_bytes"], scrape, training.session)


def test_prometheus_has_the_managed_session(training: Training) -> None:
    guest = training.guest
    session = "sentineld_session_info * on (session) group_left () sentineld_charged_bytes"

    def managed() -> bool:
        rows = query(guest, session)
        return [
            (row["metric"]["state"], row["metric"]["policy"], float(row["value"][1]) > 0)
            for row in rows
            if row["metric"]["pid"] == str(training.pid)
        ] == [("managed", "sentinel+spill", True)]

    # In a busy guest, a scrape can exceed its time limit. Then queries have no result until the
    # next scrape.
    with prometheus(guest):
        wait_for_data(guest, WHILE_MANAGED)
        wait("the managed session", managed, PATIENCE_S)
    check_metrics(guest)


@pytest.mark.long
def test_a_managed_process_is_recorded_under_its_plan(training: Training, trace: Path) -> None:
    before = training.session()
    # Pages in flight are not armed, so the module misses accesses to them.
    summary = recorded(training, trace.with_name("managed.npz"), seen_share=0.95)
    assert summary["facts"]["managed"]
    after = training.session()
    assert before is not None
    assert after is not None
    assert after["state"] == "managed"
    for word in ("layout_id", "diverged_steps", "budget_bytes"):
        assert after[word] == before[word]
    assert after["charged_bytes"] <= after["budget_bytes"]
    training.expect_another_step()


def test_plan_show_and_tensors(training: Training) -> None:
    plan = json.loads(training.ask("plan show", "--json"))
    assert plan["moves"]
    assert "boundaries" in training.ask("plan show")
    tensors = json.loads(training.ask("tensors", "--json"))["tensors"]
    # While the step was sampled, accessed pages were armed again within a stretch, so a tensor can
    # have more counted accesses in a stretch than pages. A tensor of B bytes lies on at most B /
    # 4096 + 2 pages.
    assert any(
        tensor["page_accesses"] > (tensor["bytes"] // 4096 + 2) * tensor["stretches_accessed"] > 0
        for tensor in tensors
    )
    assert sum(tensor["bytes_read"] for tensor in tensors) > 0
    assert "persistent" in training.ask("tensors")


def test_placed_parameters_are_on_the_nodes_of_their_tiers(training: Training) -> None:
    guest, pid = training.guest, training.pid
    listed = json.loads(training.ask("tensors", "--json"))["tensors"]
    placed = [row for row in listed if row["placed"]]
    assert sorted(row["placed"] for row in placed) == ["fast", "slow"]
    assert all(row["bytes"] == PLACED_BYTES for row in placed)
    ranges = " ".join(f"{row['address']} {row['bytes']}" for row in placed)
    for _ in range(3):
        command = f"cd {TREE} && python3 tests/vm/inside/nodes_of.py {pid} {ranges}"
        for row, found in zip(placed, json.loads(guest.run(command).stdout), strict=True):
            node = int(row["placed"] == "slow")
            assert len(found["range"]) >= PLACED_BYTES // 4096 - 1
            assert set(found["range"]) == {node}, (row, found)
            assert found["mapping"][str(node)] >= len(found["range"])
        training.expect_another_step()


MOVED_PAGES = 256


def test_status_warns_of_a_program_that_moves_pages(training: Training) -> None:
    guest, pid = training.guest, training.pid
    answer = json.loads(guest.run("sentinelctl status --json").stdout)
    assert answer["features"]["ebpf"]
    assert answer["ebpf_notes"] == []
    # the daemon's own moves do not count as disturbances
    session = training.session()
    assert session is not None
    assert not [row for row in session["disturbances"] if row["by"].startswith("sentineld")]
    # The program moves few pages, because the daemon has to move them back.
    guest.run(f"cd {TREE} && python3 tests/vm/inside/move_pages.py {pid} {MOVED_PAGES} 0 1")
    session = training.session()
    assert session is not None
    moved = [row for row in session["disturbances"] if row["by"] == "python3"]
    assert {(row["from_node"], row["to_node"]) for row in moved if row["pages"]} == {(0, 1)}
    # The warning names the program that has disturbed the most pages. This can be khugepaged
    # instead of the program above.
    warnings = [
        line for line in guest.run("sentinelctl status").stdout.splitlines() if "warning" in line
    ]
    assert len(warnings) == 1
    assert warnings[0].startswith(f"warning: process {pid}: ")
    training.expect_another_step()


# In runs without long tests, tests/integration/test_emulated.py covers new budgets, but not moves
# between nodes.
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_new_budget_is_enforced_without_a_new_profile(training: Training) -> None:
    before = training.session()
    assert before is not None
    attach = f"sentinelctl attach {training.pid} --fast 28% --json"
    answer = json.loads(training.guest.run(attach, timeout=900).stdout)
    assert answer["session"]["state"] in ("entering", "managed")
    wait("managed", lambda: training.in_state("managed"), 240)
    session = training.session()
    assert session is not None
    budget_bytes = session["budget_bytes"]
    assert budget_bytes == pytest.approx(0.8 * before["budget_bytes"], rel=0.001)
    assert (session["fast"], session["policy"]) == ("28%", before["policy"])
    training.wait_for_charge(budget_bytes)
    training.meter_within(budget_bytes, 2, before["barrier_timeouts"])
    training.expect_another_step()


SLOW_MOVES = f"{Path(NO_EBPF).parent}/slow-moves.toml"
BYTES_PER_S = 3e6
"""A plan for this bandwidth has late promotions. At the bandwidth of the guest's nodes, moves take
only a small part of a step, so few promotions or none are late."""


def attach_anew(training: Training, fast: str, policy: str) -> None:
    """Attach the process with a plan that assumes the configured bandwidth. An attach to another
    budget would assume the bandwidth that was measured under the live plan."""
    training.guest.run(f"sentinelctl detach {training.pid}")
    attach = f"sentinelctl attach {training.pid} --fast {fast} --policy {policy}"
    training.guest.run(attach, timeout=900)
    wait("managed", lambda: training.in_state("managed"), 480)


@contextmanager
def slow_moves(training: Training) -> Iterator[None]:
    """Make the daemon plan for a low migration bandwidth. Afterwards, the process is attached as
    before."""

    def restart_daemon() -> None:
        training.guest.run("systemctl restart sentineld", timeout=240)
        wait("resumed", lambda: training.in_state("managed"), 480)

    guest, before = training.guest, training.session()
    assert before is not None
    guest.run(WITHOUT_EBPF)
    guest.run(f"printf '[tiers]\\nmigration_bytes_per_s = {BYTES_PER_S}\\n' > {SLOW_MOVES}")
    try:
        restart_daemon()
        yield
    finally:
        guest.run(f"rm {SLOW_MOVES}")
        restart_daemon()
        guest.run(f"rm {NO_EBPF}")
        attach_anew(training, before["fast"], before["policy"])


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_each_boundary_with_late_promotions_is_decided_in_two_steps(training: Training) -> None:
    with slow_moves(training):
        attach_anew(training, "33%", "sentinel")
        assert decisions_in_time(training.session, lambda done: wait("trial", done, 900))
        training.expect_another_step()


class Stop(NamedTuple):
    """The commands that stop and continue a process; {pid} is replaced by the process's pid."""

    stop: str
    resume: str


GROUP = "/sys/fs/cgroup/stopped"
SIGNAL = Stop("kill -STOP {pid}", "kill -CONT {pid}")
FREEZER = Stop(
    f"mkdir -p {GROUP}; echo {{pid}} > {GROUP}/cgroup.procs; echo 1 > {GROUP}/cgroup.freeze",
    f"echo 0 > {GROUP}/cgroup.freeze",
)
STOPPED_S = 3.0


def stop_while_armed(training: Training, how: Stop) -> GuestProcess:
    """Stop the training while its steps are metered; returns the process of `sentinelctl meter`."""

    def accesses() -> float:
        counter = r'^sentineld_page_accesses_total{.*source="module".*} (\S+)$'
        return sum(map(float, re.findall(counter, metrics(training.guest), re.MULTILINE)))

    before = accesses()
    meter = training.guest.start(f"exec sentinelctl meter {training.pid} --steps 6 --json")
    wait("accesses to armed pages", lambda: accesses() > before, 120)
    training.guest.run(how.stop.format(pid=training.pid))
    steps = len(training.losses())
    time.sleep(STOPPED_S)
    assert len(training.losses()) == steps
    return meter


# Runs without long tests still freeze an armed training, in the test after this one.
@pytest.mark.long
@pytest.mark.parametrize(
    "how",
    [
        pytest.param(SIGNAL, id="signal"),
        pytest.param(FREEZER, id="freezer"),
    ],
)
def test_a_training_that_is_stopped_while_armed_continues(training: Training, how: Stop) -> None:
    guest, pid = training.guest, training.pid
    meter = stop_while_armed(training, how)
    session = training.session()
    assert session is not None
    assert session["state"] == "managed"
    refused(guest, f"sentinelctl meter {pid}", "wrong-state")
    guest.run(how.resume.format(pid=pid))
    output, _ = meter.communicate(timeout=600)
    assert meter.returncode == 0, output
    assert len(json.loads(output)["steps"]) == 6
    # After the pause, late moves may have made barriers time out, so the charge may exceed the
    # budget.
    training.wait_for_charge(session["budget_bytes"])
    training.expect_another_step()


def test_a_daemon_killed_while_a_frozen_training_is_armed_resumes_the_session(
    training: Training,
) -> None:
    guest = training.guest
    before = training.session()
    assert before is not None
    meter = stop_while_armed(training, FREEZER)
    assert guest.run("rmmod sentinel", check=False).returncode != 0  # the metering uses the module
    guest.run(WITHOUT_EBPF)
    guest.run("systemctl kill -s KILL sentineld")
    assert meter.wait(timeout=120) != 0
    wait(
        "the new daemon", lambda: guest.run("sentinelctl status", check=False).returncode == 0, 240
    )
    guest.run(FREEZER.resume)
    training.expect_another_step()
    wait("resumed", lambda: training.in_state("managed"), 480)
    session = training.session()
    assert session is not None
    # A correction may have replaced the plan since the session was resumed.
    reason = session["reason"]
    assert "resumed" in reason or reason.startswith("the corrected plan is live")
    # While there was no daemon, nothing evicted pages, so the charge may exceed the budget.
    training.wait_for_charge(session["budget_bytes"])
    steps = training.meter_within(session["budget_bytes"], 2, before["barrier_timeouts"])
    assert all(step["moved_bytes"] > 0 for step in steps)
    guest.run(f"rm {NO_EBPF}")


def test_the_module_can_be_unloaded_while_no_request_uses_it(training: Training) -> None:
    guest = training.guest
    # rmmod fails until the process has closed its epoch fd, which it does at its next step.
    wait("rmmod", lambda: guest.run("rmmod sentinel", check=False).returncode == 0, 240)
    training.expect_another_step()
    assert training.in_state("managed")
    guest.run("modprobe sentinel")


def test_detach_releases_the_process(training: Training) -> None:
    guest = training.guest
    guest.run(f"sentinelctl detach {training.pid}")
    assert training.in_state("registered")
    training.expect_another_step()
    refused(guest, f"sentinelctl detach {training.pid}", "wrong-state")


def test_the_sessions_end_is_reported(training: Training) -> None:
    guest, pid = training.guest, training.pid
    training.process.send_remote("CONT")
    guest.run(f"kill -KILL {pid}")
    assert training.process.wait(timeout=240) == 128 + 9
    wait("the session's end", lambda: pid not in states(guest), 240)
    assert f'pid="{pid}"' not in metrics(guest)
    refused(guest, f"sentinelctl attach {pid}", "no-such-process")
    assert "warning" not in guest.run(f"cat {LOG}").stdout


def test_the_losses_equal_those_of_an_unmanaged_run(training: Training) -> None:
    losses = training.losses()
    # The unmanaged run does not need the guest, where importing torch takes 40 s of CPU time.
    plain = in_root(f"{PORTABLE} python3 {TRAINING} --steps {len(losses)}").stdout
    assert re.findall(r"loss (\S+)", plain) == losses
