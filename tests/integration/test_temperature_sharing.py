# SPDX-License-Identifier: Apache-2.0
"""Policy `temperature`: processes, process trees and cgroups that share the shared budget."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sentineld.control.client import request
from sentineld.host.memory_limit import joining
from tests.cgroups import cgroup
from tests.integration.hot_cold import MIB, TOTAL_MIB, Program, build, daemon_with_swap, wait
from tests.integration.test_daemon import PATIENCE_S, Daemon
from tests.sentinelctl import refused

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="swap can be enabled by root only"),
    pytest.mark.alone,
]

SHARED_MIB = 64
SHARED = SHARED_MIB * MIB
WARM_MIB, COOL_MIB = 44, 6
"""Sizes of the hot sets. Together they fit into the shared budget, but the larger one does not fit
into half of it."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that is built from hot_cold.c."""
    return build(tmp_path_factory.mktemp("hot_cold"))


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("daemon")
    with daemon_with_swap("zram", folder, config=f'shared_fast = "{SHARED}"\n') as started:
        yield started


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


def started(stack: ExitStack, program: Path, hot_mib: int, prefix: Sequence[str] = ()) -> Program:
    """Start a program; see Program."""
    running = Program(program, TOTAL_MIB, hot_mib, prefix)
    stack.callback(running.close)
    return running


def attach(daemon: Daemon, *target: str) -> dict[str, Any]:
    done = daemon.ctl("attach", *target, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["session"]
    return found


def sessions(daemon: Daemon, running: Sequence[Program]) -> list[dict[str, Any]]:
    """The sessions of the programs. Checks that all budgets add up to at most the shared budget."""
    found = request(daemon.control, "status", PATIENCE_S)["sessions"]
    assert sum(one["budget_bytes"] for one in found) <= SHARED
    return [next(one for one in found if one["pid"] == each.process.pid) for each in running]


def settled(daemon: Daemon, running: Sequence[Program]) -> list[dict[str, Any]]:
    """The sessions if all are managed and have their shares, else an empty list."""
    found = sessions(daemon, running)
    whole = all(
        one["state"] == "managed"
        and one["share"]["slowdown"] is not None
        and one["budget_bytes"] == one["share"]["share_bytes"]
        and each.resident_bytes() <= one["budget_bytes"]
        for one, each in zip(found, running, strict=True)
    )
    return found if whole else []


def test_the_hotter_session_gets_more_until_it_ends(
    daemon: Daemon, program: Path, stack: ExitStack
) -> None:
    warm, cool = (started(stack, program, mib) for mib in (WARM_MIB, COOL_MIB))
    before = [one.tell("sum") for one in (warm, cool)]
    found = attach(daemon, cool.pid)
    assert (found["policy"], found["fast"]) == ("temperature", "shared")
    wait(lambda: settled(daemon, [cool]), "the first session does not get its share")
    (alone,) = sessions(daemon, [cool])
    assert alone["share"]["sessions"] == 1
    assert alone["budget_bytes"] > 0.9 * SHARED  # no other session can use the memory

    attach(daemon, warm.pid)
    both: list[dict[str, Any]] = []

    def warm_has_more() -> bool:
        both[:] = settled(daemon, [warm, cool])
        return (
            bool(both)
            and both[0]["budget_bytes"] > SHARED / 2 > both[1]["budget_bytes"]
            and warm.resident_share(0, WARM_MIB) > 0.95
            and cool.resident_share(0, COOL_MIB) > 0.95
        )

    wait(warm_has_more, "the hot sets are not in memory")
    shares = [one["share"] for one in both]
    assert [share["sessions"] for share in shares] == [2, 2]
    for one in both:
        assert one["share"]["relative_slowdown"] <= 1.25
        assert one["swap"]["working_set_bytes"] is not None
    status = daemon.ctl("status").stdout
    assert "2 sessions share; an equal share is" in status
    assert "predicted run time:" in status
    url = f"http://127.0.0.1:{daemon.metrics_port}/metrics"
    with urllib.request.urlopen(url, timeout=30) as answer:
        metrics = answer.read().decode()
    assert metrics.count("sentineld_share_bytes{") == 2
    assert metrics.count("sentineld_share_slowdown_ratio{") == 2
    # The checksums read all pages of both processes. Then both sessions shrink to their shares.
    assert [one.tell("sum") for one in (warm, cool)] == before
    wait_settled(daemon, [warm, cool])

    warm.close()
    wait(
        lambda: sessions(daemon, [cool])[0]["budget_bytes"] > 0.9 * SHARED,
        "the memory of a session that has ended is not used",
    )
    assert cool.tell("sum") == before[1]


def wait_settled(daemon: Daemon, running: Sequence[Program]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def is_settled() -> bool:
        found[:] = settled(daemon, running)
        return bool(found)

    wait(is_settled, "the sessions do not keep within their shares")
    return found


def test_the_terms_of_a_share(daemon: Daemon, program: Path, stack: ExitStack) -> None:
    one, other = (started(stack, program, COOL_MIB) for _ in range(2))
    attach(daemon, one.pid, "--weight", "3", "--min", "20MiB")
    attach(daemon, other.pid, "--tree", "--max", "8MiB")
    first, second = wait_settled(daemon, [one, other])
    assert first["share"]["weight"] == 3
    assert 20 * MIB <= first["budget_bytes"] <= SHARED - 7 * MIB
    assert second["budget_bytes"] <= 8 * MIB
    assert second["group"]
    # Other terms take effect without a new session.
    attach(daemon, other.pid, "--max", "30MiB", "--min", "30MiB")
    first, second = wait_settled(daemon, [one, other])
    assert second["budget_bytes"] == 30 * MIB
    assert 20 * MIB <= first["budget_bytes"] <= 34 * MIB
    line = refused(
        daemon.ctl("attach", other.pid, "--min", "50MiB", "--max", "60MiB"), "budget-too-large"
    )
    assert "the other sessions' minimums of 20.0 MiB" in line
    line = refused(daemon.ctl("attach", one.pid, "--fast", "8MiB"), "wrong-state")
    assert f"process {one.pid} shares the shared budget" in line
    assert daemon.ctl("detach", other.pid).returncode == 0
    wait(
        lambda: sessions(daemon, [one])[0]["budget_bytes"] > 0.9 * SHARED,
        "the memory of a detached session is not used",
    )


def test_cgroups_and_processes_share(daemon: Daemon, program: Path, stack: ExitStack) -> None:
    folder = stack.enter_context(cgroup())
    inside = started(stack, program, WARM_MIB, joining(folder))
    outside = started(stack, program, COOL_MIB)
    before = [one.tell("sum") for one in (inside, outside)]
    attach(daemon, "--cgroup", str(folder))
    attach(daemon, outside.pid)
    wait(
        lambda: (
            (found := settled(daemon, [inside, outside]))
            and found[0]["budget_bytes"] > SHARED / 2 > found[1]["budget_bytes"]
            and inside.resident_share(0, WARM_MIB) > 0.95
            and outside.resident_share(0, COOL_MIB) > 0.95
        ),
        "the hot sets are not in memory",
    )
    assert sessions(daemon, [inside])[0]["group"] == f"cgroup {folder}"
    # The cgroup becomes cold, and a new process with a hot set gets the memory.
    inside.tell(f"hot {TOTAL_MIB}")
    outside.close()
    hot = started(stack, program, WARM_MIB)
    attach(daemon, hot.pid)
    wait(
        lambda: settled(daemon, [inside, hot]) and hot.resident_share(0, WARM_MIB) > 0.95,
        "the hot set of a new session is not in memory",
    )
    assert inside.tell("sum") == before[0]


def test_budgets_of_their_own_are_outside_the_shared_budget(
    daemon: Daemon, program: Path, stack: ExitStack
) -> None:
    one = started(stack, program, COOL_MIB)
    found = attach(daemon, one.pid, "--fast", "32MiB")
    assert (found["fast"], found["share"]) == (str(32 * MIB), None)
    line = refused(daemon.ctl("attach", one.pid, "--weight", "2"), "wrong-state")
    assert f"process {one.pid} has a budget of its own" in line
