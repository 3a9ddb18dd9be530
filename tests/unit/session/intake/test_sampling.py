# SPDX-License-Identifier: Apache-2.0
"""The limit on samples, and when the module arms accessed pages again. These tests write the access
log themselves; guest tests read the log that the module writes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from sentineld.base.errors import SentinelError
from sentineld.control.frames import FrameError
from sentineld.model.records import (
    ACCESS_AGAIN,
    ACCESS_RESIDENCY,
    ACCESS_UNKNOWN,
    ACCESS_WRITE,
    SAMPLE_DTYPE,
)
from sentineld.observe import backends, module
from sentineld.observe.backend import Target
from sentineld.observe.damon import DAMON
from sentineld.observe.module import MODULE
from sentineld.observe.shim_only import SHIM_ONLY, NoWatch
from sentineld.observe.softdirty import SOFT_DIRTY as SOFT_DIRTY_BACKEND
from sentineld.session.intake import sampling
from sentineld.session.intake.sample_memory import SampleMemory
from sentineld.session.intake.sampling import (
    REPEATS_PER_PAGE_MAX,
    SAMPLES_PER_PAGE_MAX,
    Observing,
    SampleCounts,
    Sampling,
)
from sentineld.shim.writes import SOFT_DIRTY
from tests.unit.links import Linked

HUGE = (512, 1, 0, 0, 511)
MEMORY_PAGES = 64


class Log:
    """A PageSampler whose log the test writes."""

    def __init__(self) -> None:
        self.records: list[tuple[int, ...]] = []
        self.periods: list[object] = []
        """rearm_us of each attach(); "closed" for each close()."""
        self.armed: list[tuple[int, int]] = []
        """The ranges of all calls of arm()."""
        self.lost = 0

    def attach(self, *_: object, rearm_us: int, **more: object) -> None:
        """Accept any process."""
        self.periods.append(rearm_us)

    def add_range(self, *arguments: object) -> None:
        """Accept any range."""

    remove_range = disarm = add_range

    def arm(self, start: int, length_bytes: int) -> None:
        """Accept any range."""
        self.armed.append((start, length_bytes))

    def unmap(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        self.periods.append("closed")

    def epoch_fd(self) -> int:
        return os.eventfd(0)

    def stats(self) -> SimpleNamespace:
        return SimpleNamespace(lost=self.lost)

    def drain(self) -> np.ndarray:
        taken, self.records = self.records, []
        return np.array(taken, SAMPLE_DTYPE)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Sampling, Log]]:
    log, linked = Log(), Linked()
    monkeypatch.setattr(module, "PageSampler", lambda: log)
    monkeypatch.setattr(sampling, "_memory_pages", lambda: MEMORY_PAGES)
    watch = module.ModuleWatch(Target(linked.link.pid, 1024))
    made = Sampling(linked.link, MODULE, watch)
    made.arm([(0, 4096)], residency=False)
    yield made, log
    made.close()
    linked.close()


def assert_given_up(made: Sampling) -> None:
    assert made.problem is not None
    assert made.problem.code == "failed"
    assert "more pages than the machine can sample" in made.problem.message
    assert not len(made.samples())


def test_a_huge_page_counts_as_all_its_pages(watched: tuple[Sampling, Log]) -> None:
    made, log = watched
    assert SAMPLES_PER_PAGE_MAX * MEMORY_PAGES == 512
    log.records = [HUGE]
    made.collect()
    assert made.problem is None
    log.records = [(0, 1, 0, ACCESS_UNKNOWN, 65535)]
    made.collect()
    assert_given_up(made)


def test_all_records_count_as_memory(
    watched: tuple[Sampling, Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, log = watched
    record_bytes = SAMPLE_DTYPE.itemsize
    monkeypatch.setattr(sampling, "MEMORY", SampleMemory(100 * record_bytes, 1 << 30))
    for epoch in range(25):
        log.records = [(0, epoch, 0, flags, 0) for flags in (ACCESS_UNKNOWN, ACCESS_RESIDENCY) * 2]
        made.collect()
        assert made.problem is None
    log.records = [(0, 26, 0, ACCESS_UNKNOWN, 0)]
    made.collect()
    assert_given_up(made)
    # Nothing more is collected, until the pages are armed again.
    log.records = [(0, 27, 0, 0, 0)]
    made.collect()
    assert not len(made.samples())
    made.arm([(0, 4096)], residency=False)
    log.records = [(0, 28, 0, 0, 0)]
    made.collect()
    assert made.problem is None
    assert len(made.samples()) == 1


def test_repeated_accesses_are_dropped_before_sampling_is_given_up(
    watched: tuple[Sampling, Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, log = watched
    monkeypatch.setattr(sampling, "MEMORY", SampleMemory(40 * SAMPLE_DTYPE.itemsize, 1 << 30))
    log.records = [(page, 1, 0, flags, 0) for page in range(20) for flags in (0, ACCESS_AGAIN)]
    made.collect()
    assert len(made.samples()) == 40
    log.records = [(page, 1, 0, flags, 0) for page in range(20, 40) for flags in (0, ACCESS_AGAIN)]
    made.collect()
    assert made.problem is None
    assert made.samples()["page"].tolist() == list(range(40))
    log.records = [(40, 1, 0, 0, 0)]
    made.collect()
    assert_given_up(made)


def test_finished_samples_count_until_they_are_freed(
    watched: tuple[Sampling, Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, log = watched
    memory = SampleMemory(30 * SAMPLE_DTYPE.itemsize, 1 << 30)
    monkeypatch.setattr(sampling, "MEMORY", memory)
    for epoch in (1, 2):
        log.records = [(page, epoch, 0, 0, 0) for page in range(10)]
        made.collect()
    pages = made.finish()
    assert (len(pages.samples), pages.backend, pages.problem) == (20, MODULE, None)
    for fits in (False, True):
        made.arm([(0, 4096)], residency=False)
        log.records = [(page, 3, 0, 0, 0) for page in range(20)]
        made.collect()
        assert (made.problem is None) == fits
        del pages
        pages = made.finish()
    assert len(pages.samples) == 20


def test_a_given_up_sampling_ends_as_one_without_page_samples(
    watched: tuple[Sampling, Log],
) -> None:
    made, log = watched
    log.records = [HUGE, HUGE]
    made.collect()
    pages = made.finish()
    assert pages.backend is SHIM_ONLY
    assert pages.problem is made.problem is not None
    assert not len(pages.samples)


def test_forgotten_samples_do_not_count(watched: tuple[Sampling, Log]) -> None:
    made, log = watched
    log.records = [HUGE]
    made.collect()
    made.forget_before(2)
    log.records = [HUGE]
    made.collect()
    assert len(made.samples()) == 1


def test_only_accesses_count_as_accesses(watched: tuple[Sampling, Log]) -> None:
    made, log = watched
    flags = (0, ACCESS_WRITE, ACCESS_UNKNOWN, ACCESS_RESIDENCY)
    log.records = [(page, 1, 0, flag, 0) for page, flag in enumerate(flags)]
    made.collect()
    before, after = SampleCounts(taken=10, accesses=5), SampleCounts(taken=14, accesses=7)
    assert before.plus(made) == after


def test_repeated_accesses_are_dropped_when_there_are_too_many(
    watched: tuple[Sampling, Log],
) -> None:
    made, log = watched
    assert REPEATS_PER_PAGE_MAX * MEMORY_PAGES == 64
    first = [(page, 1, 0, 0, 0) for page in range(40)]
    log.records = [*first, *((page, 1, 0, ACCESS_AGAIN, 0) for page in range(24))]
    made.collect()
    assert len(made.samples()) == 64
    log.records = [(0, 1, 0, ACCESS_AGAIN, 0)]
    made.collect()
    assert made.samples()["page"].tolist() == list(range(40))
    log.records = [(40, 1, 0, 0, 0), (40, 1, 0, ACCESS_AGAIN, 0)]
    made.collect()
    assert len(made.samples()) == 41


def test_only_profiling_arms_pages_again(monkeypatch: pytest.MonkeyPatch) -> None:
    log, linked = Log(), Linked()
    monkeypatch.setattr(module, "PageSampler", lambda: log)
    observing = Observing(linked.link, 1024)
    profiling = observing.sampling(2000)
    observing.end_sampling()
    assert log.periods == [2000, "closed"]
    requested = observing.exact_sampling()
    assert requested is not profiling
    assert observing.exact_sampling() is requested
    assert log.periods == [2000, "closed", 0]
    observing.sampling(3000)
    assert log.periods == [2000, "closed", 0, "closed", 3000]
    observing.stop()
    linked.close()


def test_on_paged_tiers_the_module_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    log, linked = Log(), Linked()
    monkeypatch.setattr(module, "PageSampler", lambda: log)
    monkeypatch.setattr(backends, "BACKENDS", (MODULE, SHIM_ONLY))
    observing = Observing(linked.link, 1024, paged=True)
    observing.prepare()
    assert linked.shim.receive() == [{"type": "watch_writes"}]
    with pytest.raises(SentinelError, match="pager"):
        observing.exact_sampling()
    assert observing.sampling(2000).backend is SHIM_ONLY
    assert log.periods == []
    observing.stop()
    linked.close()


class Closable(NoWatch):
    """A watch that records whether it has been closed."""

    closed = False

    def close(self) -> None:
        self.closed = True


def test_a_watch_ends_with_the_sampling_so_that_others_can_use_the_backend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The watch is closed whether or not a step could be sampled. The next attempt opens the
    backend again."""
    opened: list[Closable] = []

    def open_one(target: Target) -> Closable:
        if opened and not opened[-1].closed:
            raise SentinelError("busy", "DAMON is watching another session")
        opened.append(Closable(target))
        return opened[-1]

    linked, other = Linked(), Linked()
    backend = replace(DAMON, open=open_one)
    monkeypatch.setattr(backends, "BACKENDS", (backend, SHIM_ONLY))
    observing, waiting = (Observing(one.link, 1024) for one in (linked, other))
    assert observing.sampling(0).backend is backend
    observing.end_sampling()
    assert waiting.sampling(0).backend is backend
    assert observing.sampling(0).backend is SHIM_ONLY
    waiting.end_sampling()
    observing.end_sampling()
    assert observing.sampling(0).backend is backend
    observing.stop()
    for one in (linked, other):
        one.close()


def test_a_watch_with_the_descriptors_of_the_process_lasts_for_the_profile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_module(monkeypatch)
    monkeypatch.setattr(backends, "BACKENDS", (SOFT_DIRTY_BACKEND, SHIM_ONLY))
    linked = Linked()
    observing = Observing(linked.link, 1024)
    observing.prepare()
    fds = [
        os.open("/proc/self/pagemap", os.O_RDONLY),
        os.open("/proc/self/clear_refs", os.O_WRONLY),
    ]
    answer = {"type": "writes", "way": SOFT_DIRTY}
    linked.shim.send(answer, fds)
    for fd in fds:
        os.close(fd)
    linked.receive()
    observing.take(answer)
    first = observing.sampling(0)
    assert first.backend is SOFT_DIRTY_BACKEND
    observing.end_sampling()
    assert observing.sampling(0) is first
    observing.end_profile()
    assert observing.sampling(0).backend is SHIM_ONLY
    observing.stop()
    linked.close()


def without_module(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Log:
        raise SentinelError("module-not-loaded", "no module")

    monkeypatch.setattr(module, "PageSampler", refuse)


def test_each_request_for_descriptors_is_answered_before_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process is attached, detached and attached again between two of its steps. In each step,
    it answers all requests that it finds."""
    without_module(monkeypatch)
    linked = Linked()
    observing = Observing(linked.link, 1024)
    for _ in range(2):
        observing.prepare()
        observing.prepare()
        for request in linked.shim.receive():
            assert request == {"type": "watch_writes"}
            answer = {"type": "writes", "way": SOFT_DIRTY}
            fds = [os.open(f"/proc/self/{name}", os.O_RDONLY) for name in ("pagemap", "stat")]
            linked.shim.send(answer, fds)
            for fd in fds:
                os.close(fd)
            linked.receive()
            observing.take(answer)
        # No received descriptor is left over. Otherwise, it would be assigned to a later message.
        with pytest.raises(FrameError):
            linked.link.connection.take_fds(1)
    observing.close()
    linked.close()


def test_a_request_that_could_not_be_sent_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    without_module(monkeypatch)
    linked = Linked()
    observing = Observing(linked.link, 1024)

    def full(*_: object) -> None:
        raise EOFError

    with monkeypatch.context() as patch:
        patch.setattr(linked.link, "send", full)
        observing.prepare()
    observing.prepare()
    assert linked.shim.receive() == [{"type": "watch_writes"}]
    linked.close()
