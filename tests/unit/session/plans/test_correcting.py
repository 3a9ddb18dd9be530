# SPDX-License-Identifier: Apache-2.0
"""A live plan is checked; a corrected plan is made in the background and returned once ready."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from sentineld.base.errors import SentinelError
from sentineld.model.plan import Plan
from sentineld.model.protocol import Flag
from sentineld.model.tiers import Tier, Tiers
from sentineld.plan.correct import WINDOW_STEPS, Correction, Progress
from sentineld.plan.spare import Spare, with_share
from sentineld.policies.registry import policy
from sentineld.profile.steps import Step, StepCutter
from sentineld.session.live.shapes import Planned, Shape
from sentineld.session.plans.correcting import Corrected, Correcting
from tests.unit.links import Linked
from tests.unit.plan.toys import PAGE, toy_plan, toy_profile, two_tiers
from tests.unit.trainer import MIB
from tests.unit.waiting import PATIENCE_S, wait
from tests.unit.workloads import Network, profiled, train

PROMISED = 1e6
NETWORK = Network(blocks=2, weights=1, weight_bytes=MIB // 4, activation_bytes=MIB // 2)
CUTS = (4, 8)


class Live:
    """The counters of a live plan's mover."""

    def __init__(self) -> None:
        self.now = Progress()

    def progress(self, words: object) -> Progress:
        return self.now

    def step(
        self, rate: float = PROMISED, stall: float = 0.0, faults: int = 0, fault_ns: float = 0.0
    ) -> None:
        """Add a step of one second, in which the mover is busy for 0.1 s.

        fault_ns: time of each fault."""
        moved = 0.1 * rate
        self.now = Progress(
            self.now.steps + 1,
            self.now.time_ns + 1e9,
            self.now.moved_bytes + moved,
            self.now.busy_ns + moved / rate * 1e9,
            self.now.stall_ns + stall * 1e9,
            faults=self.now.faults + faults,
            fault_reads=self.now.fault_reads + faults,
            fault_read_ns=self.now.fault_read_ns + faults * fault_ns,
        )


class Session:
    """A process with a live plan, and a planner that gives `answer` once `let` is set."""

    def __init__(self, planned: Planned, tiers: Tiers) -> None:
        self.linked = Linked()
        self.live = Live()
        self.asked: list[tuple[Correction, int, Plan]] = []
        self.answer: Plan | SentinelError | None = None
        self.let = threading.Event()
        self.correcting = Correcting(self.linked.link, tiers, self._plan_again)
        self.correcting.entered(planned, self.live, self.words())  # type: ignore[arg-type]

    def words(self):  # type: ignore[no-untyped-def]
        return self.linked.link.segment.words()

    def _plan_again(self, correction: Correction, budget_bytes: int, live: Plan) -> Plan | None:
        self.asked.append((correction, budget_bytes, live))
        assert self.let.wait(PATIENCE_S)
        if isinstance(self.answer, SentinelError):
            raise self.answer
        return self.answer

    def look(self) -> Corrected | None:
        return self.correcting.look(self.words())

    def flags(self) -> int:
        return int(self.linked.writer.header["flags"][0])

    def close(self) -> None:
        self.let.set()
        self.linked.close()


def planned_toy() -> Planned:
    return Planned(Shape(1, ""), toy_profile(), toy_profile(), toy_plan(), 9 * PAGE, 0.0)


@pytest.fixture
def session() -> Iterator[Session]:
    made = Session(planned_toy(), two_tiers(PROMISED))
    yield made
    made.close()


def harmed(session: Session) -> None:
    """Run a step with half of the assumed bandwidth; wait until planning begins."""
    session.live.step(PROMISED / 2, stall=0.2)
    assert session.look() is None
    wait(lambda: session.asked)


def test_a_corrected_plan_is_returned_once_it_is_made(session: Session) -> None:
    assert session.look() is None
    harmed(session)
    ((correction, budget_bytes, live),) = session.asked
    assert correction.tiers.migration_bytes_per_s == pytest.approx(PROMISED / 2)
    assert budget_bytes == live.budget_bytes == 7 * PAGE
    session.live.step(PROMISED / 2, stall=0.2)
    assert session.look() is None
    assert len(session.asked) == 1
    session.answer = replace(toy_plan(), moves=toy_plan().moves[:0])
    session.let.set()
    found: list[Corrected] = []
    wait(lambda: (one := session.look()) is not None and found.append(one) is None)
    (corrected,) = found
    assert corrected.cause == "migration"
    assert corrected.planned.plan is session.answer
    assert corrected.planned.migration_bytes_per_s == pytest.approx(PROMISED / 2)
    assert session.correcting.tiers.migration_bytes_per_s == PROMISED
    session.correcting.entered(corrected.planned, session.live, session.words())  # type: ignore[arg-type]
    assert session.correcting.tiers.migration_bytes_per_s == pytest.approx(PROMISED / 2)
    assert session.look() is None


def test_the_latency_of_faults_is_corrected() -> None:
    fast, slow = two_tiers(PROMISED).tiers
    slow = replace(slow, read_latency_ns=1e5)
    session = Session(planned_toy(), Tiers((fast, slow), PROMISED, "paged", paged=True))
    session.answer = toy_plan()
    session.let.set()
    found: list[Corrected] = []

    def corrected() -> bool:
        session.live.step(faults=100, fault_ns=1e6)
        one = session.look()
        return one is not None and found.append(one) is None

    wait(corrected)
    (one,) = found
    assert one.cause == "faults"
    latency_ns = one.planned.fault_latency_ns
    assert latency_ns == pytest.approx(1e6, rel=0.05)
    assert session.correcting.tiers.tiers[1].read_latency_ns == 1e5
    session.correcting.entered(one.planned, session.live, session.words())  # type: ignore[arg-type]
    assert session.correcting.tiers.tiers[1].read_latency_ns == latency_ns
    session.close()


def test_other_tiers_have_no_latency_of_faults() -> None:
    fast, slow = two_tiers(PROMISED).tiers
    three = Tiers((fast, replace(slow, read_latency_ns=300.0), slow), PROMISED, "toy")
    session = Session(planned_toy(), three)
    harmed(session)
    assert session.correcting.tiers == three
    session.close()


def with_spare() -> Planned:
    few = replace(toy_plan(), moves=toy_plan().moves[:0])
    tiers = with_share(two_tiers(PROMISED), 0.5)
    return replace(planned_toy(), spare=Spare(few, tiers, 0.7 * PROMISED))


@pytest.mark.parametrize("rate", [0.3, 0.5, 0.69])
def test_a_spare_plan_is_returned_at_once(rate: float) -> None:
    planned = with_spare()
    session = Session(planned, two_tiers(PROMISED))
    session.live.step(PROMISED * rate, stall=0.2)
    corrected = session.look()
    assert corrected is not None
    assert corrected.cause == "migration"
    assert planned.spare is not None
    assert corrected.planned.plan is planned.spare.plan
    assert corrected.planned.migration_bytes_per_s == PROMISED / 2
    # A spare plan is valid for one profile and one bandwidth only, so the corrected plan has no
    # spare plan.
    assert corrected.planned.spare is None
    assert not session.asked
    session.correcting.entered(corrected.planned, session.live, session.words())  # type: ignore[arg-type]
    assert session.correcting.tiers.migration_bytes_per_s == PROMISED / 2
    session.close()


def test_a_spare_plan_for_much_less_is_not_taken() -> None:
    session = Session(with_spare(), two_tiers(PROMISED))
    session.live.step(PROMISED * 0.72, stall=0.2)
    assert session.look() is None
    wait(lambda: session.asked)
    session.close()


@pytest.mark.parametrize("answer", [None, SentinelError("failed", "no plan", "none")])
def test_without_a_better_plan_the_live_one_stays(
    session: Session, answer: SentinelError | None
) -> None:
    session.answer = answer
    harmed(session)
    session.let.set()
    for _ in range(50):
        session.live.step(PROMISED / 2, stall=0.2)
        assert session.look() is None
        time.sleep(0.002)
    assert len(session.asked) == 1


def test_a_plan_that_comes_after_the_live_one_was_left_is_dropped(session: Session) -> None:
    session.answer = toy_plan()
    harmed(session)
    session.correcting.left()
    session.let.set()
    assert session.look() is None
    session.correcting.entered(planned_toy(), session.live, session.words())  # type: ignore[arg-type]
    assert session.look() is None


def steps_of(network: Network) -> list[Step]:
    return StepCutter().feed(train(network, WINDOW_STEPS + 2, CUTS).take_records())[1:]


def timed(network: Network, paged: bool = False) -> Session:
    """A session under a plan for NETWORK, after it has recorded the times of `network`'s steps."""
    # Unless `paged` is true, the tiers have no speeds: accesses to slow pages take no extra time.
    fast, slow = Tier((0,), 1 << 30), Tier((1,), 1 << 30)
    if paged:
        slow = replace(slow, read_bytes_per_s=200e6, write_bytes_per_s=200e6)
    tiers = Tiers((fast, slow), 200e6, "toy", paged=paged)
    profile = profiled(NETWORK, CUTS)[0]
    plan = policy("sentinel").plan(profile, tiers, profile.peak_bytes // 2)
    assert len(plan.moves)
    plan = replace(plan, layout=replace(plan.layout, waits=np.full_like(plan.layout.waits, -1)))
    session = Session(Planned(Shape(1, ""), profile, profile, plan, 0, 0.0), tiers)
    assert not session.correcting.begin_recording()
    for _ in range(3):
        session.live.step(tiers.migration_bytes_per_s, stall=0.2)
        assert session.look() is None
    assert session.correcting.begin_recording()
    assert not session.correcting.begin_recording()
    assert bool(session.flags() & Flag.NO_STALLS) == paged
    session.linked.link.set_flags(on=Flag.RECORD)
    session.correcting.on_step(steps_of(replace(network, blocks=1))[0])  # of another shape
    for step in steps_of(network)[:WINDOW_STEPS]:
        assert session.flags() & Flag.RECORD
        session.correcting.on_step(step)
    assert not session.flags() & (Flag.RECORD | Flag.NO_STALLS)
    assert not session.correcting.recording
    return session


def test_on_paged_tiers_the_measured_times_contain_no_slow_accesses() -> None:
    session = timed(replace(NETWORK, bytes_per_s=2 * NETWORK.bytes_per_s), paged=True)
    wait(lambda: session.asked)
    ((correction, _, _),) = session.asked
    session.close()
    assumed = profiled(NETWORK, CUTS)[0].stretches["time_ns"].astype(np.float64)
    found = correction.profile.stretches["time_ns"].astype(np.float64)
    assert found.sum() == pytest.approx(assumed.sum() / 2, rel=0.1)
    assert (found > 0.4 * assumed).all()


def test_faster_steps_lead_to_another_plan() -> None:
    session = timed(replace(NETWORK, bytes_per_s=2 * NETWORK.bytes_per_s))
    wait(lambda: session.asked)
    ((correction, _, _),) = session.asked
    session.close()
    assert correction.cause == "times"
    taken = float(correction.profile.stretches["time_ns"].sum())
    assumed = float(profiled(NETWORK, CUTS)[0].stretches["time_ns"].sum())
    assert 0.45 * assumed < taken < 0.7 * assumed


@pytest.mark.parametrize("pace", [1.0, 0.5])
def test_steps_as_fast_as_assumed_or_slower_do_not(pace: float) -> None:
    session = timed(replace(NETWORK, bytes_per_s=pace * NETWORK.bytes_per_s))
    assert not session.asked
    assert not session.correcting.begin_recording()
    session.close()
