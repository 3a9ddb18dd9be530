# SPDX-License-Identifier: Apache-2.0
"""Accesses to memory without a live tensor: the mappings of the accessed pages, and the reasons
why no tensor is found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sentineld.model.protocol import NOT_IN_SEQUENCE, Alloc, Boundary, Event
from sentineld.model.records import SAMPLE_DTYPE, MemoryMapping
from sentineld.profile.steps import StepCutter
from sentineld.profile.trace import Trace, profile_of
from sentineld.profile.unattributed import NO_TENSOR, NOT_ALIVE, OTHER_THREAD, unattributed_accesses
from tests.unit.traces import recorded
from tests.unit.trainer import HEAP, PAGE, Trainer


def a_trace() -> Trace:
    # page of the heap   0   1   2   3      100
    # stretch 0         [A   A]
    # stretch 1         [B   B   B] [T]            T: allocated by another thread
    trainer = Trainer()
    trainer.begin_step()
    first = trainer.alloc(2 * PAGE)
    trainer.free(first)
    trainer.boundary(Boundary.FORWARD, "a")
    second = trainer.alloc(3 * PAGE)
    trainer.free(second)
    trainer.record(HEAP + 3 * PAGE, PAGE, NOT_IN_SEQUENCE, Event.ALLOC, Alloc.OTHER)
    epoch = trainer.epoch
    trainer.finish()
    heap = HEAP // PAGE
    samples = [
        (heap, epoch - 1, 0, 0, 0),  # an access to A
        (heap, epoch, 0, 0, 0),  # an access to B, at A's former address
        (heap + 2, epoch - 1, 0, 0, 0),  # an access to B's memory, before B is born
        (heap + 2, epoch, 0, 0, 0),  # an access to B
        (heap + 3, epoch - 1, 0, 0, 0),  # an access to T's memory
        (heap + 3, epoch, 0, 0, 0),  # an access to T's memory
        (heap + 100, epoch, 0, 0, 0),  # no tensor
        (5, epoch, 0, 0, 0),  # no tensor, in another mapping
        (7, epoch, 0, 0, 0),  # in no known mapping
    ]
    return Trace(
        steps=tuple(StepCutter().feed(trainer.take_records())),
        samples=np.array(samples, SAMPLE_DTYPE),
        op_accesses=recorded().op_accesses[:0],
        cuts=np.empty(0, np.uint32),
        layers=("", "a"),
        mappings=(
            MemoryMapping(HEAP, HEAP + 200 * PAGE, "the shim's heap"),
            MemoryMapping(5 * PAGE, 6 * PAGE, "libfoo.so"),
        ),
    )


def test_each_unattributed_access_has_a_mapping_and_a_reason() -> None:
    found = {
        (one.mapping, one.what): (one.pairs, one.pages) for one in unattributed_accesses(a_trace())
    }
    assert found == {
        ("the shim's heap", OTHER_THREAD): (2, 1),
        ("the shim's heap", NOT_ALIVE): (1, 1),
        ("the shim's heap", NO_TENSOR): (1, 1),
        ("libfoo.so", NO_TENSOR): (1, 1),
        ("unknown", NO_TENSOR): (1, 1),
    }


def test_the_sum_equals_the_profile_s_unattributed_pages() -> None:
    trace = a_trace()
    assert (
        sum(one.pairs for one in unattributed_accesses(trace))
        == profile_of(trace).unattributed_pages
        == 6
    )


@pytest.mark.parametrize("mappings", [(), a_trace().mappings[1:]])
def test_the_reason_does_not_depend_on_mappings(mappings: tuple[MemoryMapping, ...]) -> None:
    found = unattributed_accesses(replace(a_trace(), mappings=mappings))
    assert sum(one.pairs for one in found if one.mapping == "unknown") >= 5


def test_a_trace_without_unattributed_accesses_or_samples() -> None:
    assert unattributed_accesses(recorded()) == ()
    assert unattributed_accesses(replace(a_trace(), samples=np.empty(0, SAMPLE_DTYPE))) == ()
