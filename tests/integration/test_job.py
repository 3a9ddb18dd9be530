# SPDX-License-Identifier: Apache-2.0
"""torchrun over two machines, here two network namespaces, with a daemon on each."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.netns import Node, torchrun, two_nodes
from tests.integration.shim.daemon_side import ROOT
from tests.integration.test_daemon import PATIENCE_S, Daemon

SCRIPT = ROOT / "tests/integration/job_train.py"
PORT = 29511
STEPS = 12
HELD_STEP = 6
HELD_RANK = 1
JOB = "two-machines"


@pytest.fixture
def nodes() -> Iterator[tuple[Node, Node]]:
    pytest.importorskip("torch")
    with two_nodes() as found:
        yield found


@pytest.fixture
def daemons(nodes: tuple[Node, Node], tmp_path: Path) -> Iterator[list[Daemon]]:
    with ExitStack() as stack:
        started: list[Daemon] = []
        for node in nodes:
            folder = tmp_path / node.interface
            folder.mkdir()
            started.append(stack.enter_context(Daemon(folder, wrapper=node.wrapper)))
        yield started


def progress(node: Node, daemon: Daemon) -> tuple[dict[str, str], float, float] | None:
    """Labels, steps and boundaries of the node's rank, as Prometheus reads them; None if the
    rank has no session yet."""
    text = node.read(f"http://127.0.0.1:{daemon.metrics_port}/metrics")
    families = {one.name: one.samples for one in text_string_to_metric_families(text)}
    if not families["sentineld_session_info"]:
        return None
    names = "sentineld_session_info", "sentineld_steps", "sentineld_step_boundaries"
    (info,), (steps,), (boundaries,) = (families[name] for name in names)
    return info.labels, steps.value, boundaries.value


def wait(what: str, done: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline_s, f"not in time: {what}"
        time.sleep(0.2)


def test_the_ranks_of_a_job_are_known_and_the_straggler_is_behind(
    nodes: tuple[Node, Node], daemons: list[Daemon], tmp_path: Path
) -> None:
    held = tmp_path / "go on"
    script = [str(SCRIPT), str(HELD_RANK), str(HELD_STEP), str(held), str(STEPS)]
    agents = [
        subprocess.Popen(
            torchrun(nodes, number, PORT, JOB, daemon.folder / "shim.sock", script),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number, daemon in enumerate(daemons)
    ]
    try:

        def behind() -> bool:
            """Whether the first rank waits in the step in which the second one is held."""
            for agent in agents:
                assert agent.poll() is None, agent.stderr and agent.stderr.read()
            states = [progress(*pair) for pair in zip(nodes, daemons, strict=True)]
            if None in states:
                return False
            (_, first, ahead), (_, second, late) = (one for one in states if one)
            return first == second and ahead > late

        wait("the first rank ahead of the second", behind)
        for number, (node, daemon) in enumerate(zip(nodes, daemons, strict=True)):
            (session,) = daemon.sessions() or ()
            assert session["job"] == {
                "name": JOB,
                "rank": number,
                "world_size": 2,
                "local_rank": 0,
            }
            found = progress(node, daemon)
            assert found is not None
            assert (found[0]["training_job"], found[0]["rank"]) == (JOB, str(number))
            assert f"rank {number} of 2 of job {JOB}" in daemon.ctl("status").stdout
    finally:
        held.touch()
        said = [agent.communicate(timeout=PATIENCE_S) for agent in agents]
    # Each rank prints its result when it ends. The agents' exit statuses are not checked: one
    # agent serves torchrun's key-value store for both, and if it ends first, the other agent fails.
    results = sorted(out.split() for out, _ in said)
    assert [rank for rank, *_ in results] == ["0", "1"], said
    assert results[0][1] == results[1][1]
