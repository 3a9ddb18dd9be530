# SPDX-License-Identifier: Apache-2.0
"""Kinds of training under the shim, by what it can do for each: same losses, bit for bit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sentineld.model.protocol import Mode
from tests.integration.shim import daemon_side as side
from tests.integration.shim.daemon_side import Daemon, Training
from tests.integration.shim.place import HERE, Place

SCRIPT = Path(__file__).parent / "compat.py"
TRAINER = Path(__file__).parent / "hf_trainer.py"

STEADY = (
    *("checkpoint", "autocast", "gan", "forks"),
    *(
        pytest.param(kind, marks=pytest.mark.long)
        for kind in (
            *("checkpoint-reentrant", "accumulate", "keep", "compile", "compile-aot", "fused"),
            "trainer",
        )
    ),
)
"""Every step allocates as the one before: planned, and never diverging."""

NOW_AND_THEN = ("interrupt", pytest.param("evaluate", marks=pytest.mark.long))
"""Some steps are others: planned, and falling back in those."""

PASSES = 100
"""Backward passes without an optimizer's step after which the shim gives a hint."""

UNSTEADY = ("lbfgs",)
"""Now as many evaluations in a step as in the one before, now not."""


@pytest.fixture
def place() -> Place:
    """Where these trainings run; tests/vm has them run elsewhere."""
    pytest.importorskip("torch")
    return HERE


@pytest.fixture
def train(tmp_path: Path, place: Place) -> Iterator[Callable[[str], tuple[Daemon, Training]]]:
    daemon = Daemon(tmp_path / "shim.sock")

    def start(kind: str) -> tuple[Daemon, Training]:
        if reason := place.lacking.get(kind):
            pytest.skip(reason)
        stop = tmp_path / "stop"
        script = TRAINER if kind == "trainer" else SCRIPT
        training = Training(kind, socket_path=daemon.path, stop=stop, script=script, place=place)
        daemon.accept()
        return daemon, training

    yield start
    daemon.close()
    (tmp_path / "stop").touch()


def check_losses(training: Training) -> None:
    losses = training.finish()
    assert len(losses) > 5
    assert losses == training.plain_losses(len(losses))


Start = Callable[[str], tuple[Daemon, Training]]


@pytest.mark.parametrize("kind", STEADY)
def test_planned_in_every_step(train: Start, kind: str) -> None:
    daemon, training = train(kind)
    slots = side.manage(daemon)
    daemon.wait_steps(6)
    assert daemon.word("mode") == Mode.REPLAY
    assert daemon.word("diverged_steps") == 0
    planned = slots["flags"] != 0
    # What outlives a step stays in the heap: the loop's own variables, what the script keeps.
    assert planned.mean() > 0.8, f"{planned.sum()} of {len(slots)}"
    check_losses(training)


@pytest.mark.parametrize("kind", NOW_AND_THEN)
def test_planned_but_for_some_steps(train: Start, kind: str) -> None:
    daemon, training = train(kind)
    side.manage(daemon)
    daemon.wait_steps(12)
    assert 1 <= daemon.word("diverged_steps") <= 9
    check_losses(training)


@pytest.mark.long
@pytest.mark.parametrize("kind", UNSTEADY)
def test_planned_as_long_as_it_lasts(train: Start, kind: str) -> None:
    daemon, training = train(kind)
    side.manage(daemon)
    daemon.wait_steps(12)
    check_losses(training)


@pytest.mark.long
def test_lengths_that_change_with_every_step_are_recorded(train: Start) -> None:
    daemon, training = train("lengths")
    for first, second in itertools.pairwise(daemon.record(6)):
        assert side.sequence(first) != side.sequence(second)
    check_losses(training)


def test_updates_by_hand_are_no_steps(train: Start) -> None:
    daemon, training = train("by-hand")
    told = daemon.receive("note")["text"]
    assert "backward passes without a step of torch.optim" in told
    training.wait_losses(2 * PASSES + 10)
    assert daemon.word("step") == 0
    check_losses(training)
    assert training.said() == [f"sentineld.shim: {told}"]
