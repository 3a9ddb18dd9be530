# SPDX-License-Identifier: Apache-2.0
"""Many kinds of training keep their losses under the shim, bit for bit; steady ones get a plan."""

from __future__ import annotations

import itertools
import os
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
    *("checkpoint", "autocast", "created", "gan", "forks"),
    *(
        pytest.param(kind, marks=pytest.mark.long)
        for kind in (
            *("checkpoint-reentrant", "accumulate", "keep", "compile", "compile-aot", "fused"),
            "trainer",
        )
    ),
)
"""Trainings whose steps all have the same allocations: they get a plan, and no step diverges."""

MOSTLY_STEADY = ("interrupt", pytest.param("evaluate", marks=pytest.mark.long))
"""Trainings that get a plan although some steps have other allocations; these steps diverge."""

WHOLE_TORCH = ("autocast", "compile", "compile-aot", "trainer")
"""Trainings that import all of torch. tests/eager.py starts the others."""

PASSES = 100
"""Equals sentineld.shim.stepless.PASSES_MAX."""

UNSTEADY = ("lbfgs",)
"""Trainings whose steps evaluate the model a varying number of times."""


@pytest.fixture
def place() -> Place:
    """Where these trainings run; tests/vm overrides this fixture."""
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
        training = Training(
            kind,
            socket_path=daemon.path,
            stop=stop,
            script=script,
            place=place,
            eager=kind not in WHOLE_TORCH,
        )
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
def test_steady_training_is_planned_in_every_step(train: Start, kind: str) -> None:
    daemon, training = train(kind)
    slots = side.manage(daemon)
    daemon.wait_steps(6)
    assert daemon.word("mode") == Mode.REPLAY
    assert daemon.word("diverged_steps") == 0
    planned = slots["flags"] != 0
    # A tensor that the script keeps for longer than a whole step stays in the heap; see overlay()
    # in daemon_side.py.
    assert planned.mean() > 0.8, f"{planned.sum()} of {len(slots)}"
    check_losses(training)


@pytest.mark.parametrize("kind", MOSTLY_STEADY)
def test_occasional_other_steps_diverge(train: Start, kind: str) -> None:
    daemon, training = train(kind)
    side.manage(daemon)
    begin, before = daemon.word("step"), daemon.word("diverged_steps")
    daemon.wait_steps(12)
    diverged = daemon.word("diverged_steps") - before
    # On a slow machine, more than 12 steps may have passed.
    assert 1 <= diverged <= 0.75 * (daemon.word("step") - begin)
    check_losses(training)


@pytest.mark.long
@pytest.mark.parametrize("kind", UNSTEADY)
def test_unsteady_training_keeps_its_losses(train: Start, kind: str) -> None:
    daemon, training = train(kind)
    side.manage(daemon)
    daemon.wait_steps(12)
    check_losses(training)


@pytest.mark.long
def test_steps_of_varying_length_are_recorded(train: Start) -> None:
    daemon, training = train("lengths")
    for first, second in itertools.pairwise(daemon.record(6)):
        assert side.sequence(first) != side.sequence(second)
    check_losses(training)


def test_a_script_that_profiles_its_steps_keeps_its_events(train: Start) -> None:
    """The script also checks that its profiler sees all operators of the steps that it records."""
    daemon, training = train("profile")
    for _ in range(8):
        daemon.send({"type": "profile_ops"})
        assert daemon.receive("accesses")["count"] > 100
        os.close(daemon.take_descriptor())
    check_losses(training)
    waits = "sentineld.shim: the access step waits for the end of the script's own profiler"
    assert training.shim_lines() in ([], [waits])


def test_updates_without_an_optimizer_are_reported_once(train: Start) -> None:
    daemon, training = train("by-hand")
    note = daemon.receive("note")["text"]
    assert "backward passes without a step of torch.optim" in note
    training.wait_losses(2 * PASSES + 10)
    assert daemon.word("step") == 0
    check_losses(training)
    assert training.shim_lines() == [f"sentineld.shim: {note}"]
