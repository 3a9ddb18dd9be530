# SPDX-License-Identifier: Apache-2.0
"""Metering by the module ends with an error if there are more samples than may be kept, and leaves
out steps of which records were lost. Metering fails if too many steps in a row are left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from sentineld.base.errors import SentinelError
from sentineld.migrate.ledger import Ledger
from sentineld.model import protocol
from sentineld.model.plan import Space
from sentineld.model.records import SAMPLE_DTYPE
from sentineld.model.tiers import Tiers
from sentineld.observe import module
from sentineld.observe.backend import Target
from sentineld.observe.module import MODULE, ModuleWatch
from sentineld.observe.shim_link import ShimLink
from sentineld.profile.meter import StepMeter
from sentineld.profile.steps import Step
from sentineld.session.intake import sampling
from sentineld.session.intake.sample_memory import SampleMemory
from sentineld.session.intake.sampling import Sampling
from sentineld.session.live.managed import Managed
from sentineld.session.work.metering import (
    GAP_STEPS_MAX,
    STEPS_WITHOUT_SUCCESS_MAX,
    Metering,
    ModuleMetering,
)
from tests.unit.links import Linked
from tests.unit.plan.toys import two_tiers
from tests.unit.session.intake.test_sampling import Log
from tests.unit.session.work.test_profiling import SMALL, steps_of


class Mover:
    """A mover without moves."""

    ledger = Ledger()
    gaps = 0

    def watch(self, _: object, begin: Callable[[], None]) -> None:
        begin()

    def unwatch(self, end: Callable[[], int | None]) -> int | None:
        return end()


class Metered:
    """A process whose heap of one page is metered by the module. The test writes the log."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log, self.linked, self.mover = Log(), Linked(), Mover()
        monkeypatch.setattr(module, "PageSampler", lambda: self.log)
        link = self.linked.link
        self._sampling = Sampling(link, MODULE, ModuleWatch(Target(link.pid, 1024)))

    def begin(self, steps: int, tiers: Tiers | None = None) -> ModuleMetering:
        """Begin to meter this number of steps."""
        managed = cast(Managed, SimpleNamespace(mover=self.mover, spaces={Space.HEAP: (0, 4096)}))
        link, tiers = self.linked.link, two_tiers() if tiers is None else tiers
        return ModuleMetering(link, managed, self._sampling, tiers, steps)

    def close(self) -> None:
        self._sampling.close()
        self.linked.close()


@pytest.fixture
def metered(monkeypatch: pytest.MonkeyPatch) -> Iterator[Metered]:
    process = Metered(monkeypatch)
    yield process
    process.close()


def steps_in_epochs(count: int) -> list[Step]:
    """Steps, each of which is one epoch."""
    steps = steps_of(SMALL, count)
    for epoch, step in enumerate(steps):
        step.records["address"][step.records["event"] == protocol.Event.BOUNDARY] = 1 + epoch
    return steps


def test_metering_fails_with_too_many_samples(
    metered: Metered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "MEMORY", SampleMemory(10 * SAMPLE_DTYPE.itemsize, 1 << 30))
    metering = metered.begin(2, Tiers((), 0.0, "none"))
    metered.log.records = [(page, 1, 0, 0, 0) for page in range(11)]
    (step,) = steps_of(SMALL, 1)
    assert metering.on_step(step)
    metering.finish()
    with pytest.raises(SentinelError, match="more pages than the machine can sample"):
        metering.wait()


def test_a_wrong_step_of_the_process_does_not_keep_metering_from_ending(metered: Metered) -> None:
    metering = metered.begin(1)
    metered.linked.set(step=0xFFFF_FFF0)
    steps = steps_in_epochs(GAP_STEPS_MAX + 2)
    metered.mover.gaps = 2
    assert any(metering.on_step(step) for step in steps)
    metering.finish()
    assert [found.step for found in metering.wait()] == [steps[GAP_STEPS_MAX + 1].number]


def test_steps_with_lost_records_are_not_metered(metered: Metered) -> None:
    metering, log, steps = metered.begin(2), metered.log, steps_in_epochs(9)
    assert not metering.on_step(steps[0])
    for step in steps[1:7]:
        log.lost += 1  # one record is lost, and no other record arrives
        assert not metering.on_step(step)
    log.lost += 1
    assert metering.on_step(steps[7])
    metering.finish()
    with pytest.raises(SentinelError, match="the module lost records"):
        metering.wait()


@pytest.mark.parametrize(
    ("gaps", "present", "whole"),
    [
        # A gap begins in step 1 and ends in step 3. When step 3 is metered, step 4 has already
        # begun, so it may have lost accesses, too.
        ([0, 1, 1, 2, 2, 2, 2], [1, 2, 3, 4, 5, 6, 7], [0, 5, 6]),
        # The daemon is 8 steps behind. The gap counts as one step that could not be metered.
        ([0, *[2] * 10], [1, *[9] * 8, 10, 11], [0, 10]),
    ],
)
def test_steps_with_gaps_in_the_watch_are_not_metered(
    metered: Metered, gaps: list[int], present: list[int], whole: list[int]
) -> None:
    """gaps: the number of gaps when each step is metered. present: the process's step then.
    whole: the steps that are metered."""
    metering, mover, steps = metered.begin(len(whole)), metered.mover, steps_in_epochs(12)
    for step, mover.gaps, at in zip(steps, gaps, present, strict=False):
        metered.linked.set(step=steps[at].number)
        if metering.on_step(step):
            break
    metering.finish()
    assert [found.step for found in metering.wait()] == [steps[at].number for at in whole]


class Scripted(Metering):
    """Metering that succeeds only for the steps whose numbers are in `whole`."""

    def __init__(self, steps: int, whole: set[int]) -> None:
        super().__init__(cast(ShimLink, None), cast(Managed, None), steps)
        self._whole = whole

    def _meter(self, step: Step) -> StepMeter | None:
        if step.number in self._whole:
            return cast(StepMeter, SimpleNamespace(step=step.number))
        self._why = ": a reason"
        return None


def step_numbered(number: int) -> Step:
    return cast(Step, SimpleNamespace(number=number))


def test_only_unmetered_steps_in_a_row_end_metering() -> None:
    metering = Scripted(3, {5, 11, 17})
    assert not any(metering.on_step(step_numbered(number)) for number in range(17))
    assert metering.on_step(step_numbered(17))
    metering.finish()
    assert [metered.step for metered in metering.wait()] == [5, 11, 17]

    metering = Scripted(3, {5})
    last = 5 + STEPS_WITHOUT_SUCCESS_MAX + 1
    assert not any(metering.on_step(step_numbered(number)) for number in range(last))
    assert metering.on_step(step_numbered(last))
    metering.finish()
    with pytest.raises(SentinelError, match="too many steps could not be metered completely: a"):
        metering.wait()
