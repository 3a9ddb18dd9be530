# SPDX-License-Identifier: Apache-2.0
"""Measures on the host how fast the daemon drains 100,000 samples and joins them with tensors.

Needs no module: the log is a ring in this process's memory, read by the daemon's PageSampler.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from sentineld.model.records import OP_ACCESS_DTYPE, SAMPLE_DTYPE, Records
from sentineld.observe import uapi
from sentineld.observe.page_sampler import PageSampler
from sentineld.profile.attribution import build_profile
from sentineld.profile.steps import Step, StepCutter
from tests.bench.figures import Spread, spread
from tests.unit.trainer import MIB, Trainer
from tests.unit.workloads import Network, train

SAMPLES = 100_000
RECORDS = 1 << 20
"""The daemon's default log size, in records."""

REPEATS = 15

NETWORK = Network(blocks=24, weight_bytes=MIB, activation_bytes=2 * MIB)
"""A step of this network provides the samples; only the first SAMPLES of them are used."""


class Ring(PageSampler):
    """A sampler whose log is in this process's memory and is filled by the benchmark."""

    def __init__(self, records: int) -> None:
        self._fd = -1
        self._map = mmap.mmap(-1, uapi.LOG_OFFSET + records * SAMPLE_DTYPE.itemsize)
        self._mask = records - 1

    def fill(self, samples: Records) -> None:
        """Append samples as the module does: first the records, then the head."""
        assert self._map is not None
        ring = np.frombuffer(self._map, SAMPLE_DTYPE, self._mask + 1, uapi.LOG_OFFSET)
        log = self._log()
        head = int(log.head)
        ring[(head + np.arange(len(samples))) & self._mask] = samples
        log.head = head + len(samples)


def access_step() -> tuple[Step, Records, Records, tuple[str, ...]]:
    """Record a steady-state step of NETWORK.

    Returns (step, its first SAMPLES samples, its operators' accesses, names of its layers).
    """
    trainer: Trainer = train(NETWORK, 4)
    step = StepCutter().feed(trainer.take_records())[-1]
    samples, ops = trainer.take_samples(), trainer.take_ops()
    if len(samples) < SAMPLES:
        raise ValueError(f"the workload has {len(samples)} samples, {SAMPLES} are needed")
    return step, samples[:SAMPLES], ops, tuple(trainer.layers)


def milliseconds(work: Callable[[], object], prepare: Callable[[], object]) -> Spread:
    """Time REPEATS runs of work() after one warm-up run. Before each run, prepare() is called; the
    time of this call is not included."""
    times = []
    for repeat in range(REPEATS + 1):
        prepare()
        begin = time.perf_counter()
        work()
        if repeat:
            times.append((time.perf_counter() - begin) * 1e3)
    return spread(times)


def measure() -> dict[str, Any]:
    """Measure; return the times in milliseconds and the sizes of the step and of its profile."""
    step, samples, ops, layers = access_step()
    no_ops = np.empty(0, OP_ACCESS_DTYPE)
    ring = Ring(RECORDS)

    def take() -> Records:
        taken = ring.drain()
        if len(taken) != SAMPLES:
            raise ValueError(f"{len(taken)} samples were drained from the ring")
        return taken

    def fill() -> None:
        ring.fill(samples)

    def nothing() -> None:
        pass

    profile = build_profile(step, samples, ops, layers)
    without = milliseconds(lambda: build_profile(step, samples[:0], no_ops, layers), nothing)
    figures = {
        "drain": milliseconds(take, fill),
        "join_samples": milliseconds(lambda: build_profile(step, samples, no_ops, layers), nothing),
        "join_nothing": without,
        "join_samples_and_operators": milliseconds(
            lambda: build_profile(step, samples, ops, layers), nothing
        ),
        "drain_and_join": milliseconds(lambda: build_profile(step, take(), no_ops, layers), fill),
    }
    return {
        "samples": SAMPLES,
        "tensors": len(profile.tensors),
        "stretches": profile.stretch_count,
        "access_rows": len(profile.accesses),
        "milliseconds": {name: figure.to_json() for name, figure in figures.items()},
    }
