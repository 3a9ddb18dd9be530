# SPDX-License-Identifier: Apache-2.0
"""The steps of a trace, and its profile."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sentineld.profile.trace import profile_of
from tests.unit.traces import recorded
from tests.unit.trainer import HEAP, PAGE

TRACE = recorded()


def test_the_last_step_has_the_accesses_and_the_one_before_the_times() -> None:
    assert TRACE.access_step is TRACE.steps[2]
    assert TRACE.timed_step is TRACE.steps[1]
    assert replace(TRACE, steps=TRACE.steps[2:]).timed_step is None


@pytest.mark.parametrize(
    ("told", "threads"),
    [("6", 6), (8, 8), ("0", 1), ("many", 1), ("²", 1), ("1" * 5000, 1), (None, 1)],
)
def test_the_number_of_threads_is_1_if_it_is_unknown(told: object, threads: int) -> None:
    facts = {} if told is None else {"threads": told}
    assert replace(TRACE, facts=facts).threads == threads


def test_the_profile_takes_times_from_the_step_at_full_speed() -> None:
    # Slow down the access step to three times its duration.
    step = TRACE.access_step
    records = step.records.copy()
    begin = int(records["time_ns"][0])
    records["time_ns"] = begin + 3 * (records["time_ns"] - np.uint64(begin))
    slow = replace(step, records=records, end_ns=begin + 3 * (step.end_ns - begin))
    ops = TRACE.op_accesses.copy()
    ops["time_ns"] = begin + 3 * (ops["time_ns"] - np.uint64(begin))
    trace = replace(TRACE, steps=(*TRACE.steps[:-1], slow), op_accesses=ops)
    found, known = profile_of(trace), profile_of(TRACE)
    assert np.array_equal(found.stretches["time_ns"], known.stretches["time_ns"])
    assert np.array_equal(found.accesses, known.accesses)
    alone = profile_of(replace(trace, steps=(slow,)))
    whole_ns = int(known.stretches["time_ns"].sum())
    assert int(alone.stretches["time_ns"].sum()) == 3 * whole_ns


def test_the_profile_knows_cuts_layers_and_the_heap() -> None:
    profile = profile_of(TRACE)
    assert profile.stretches["cursor"][profile.stretches["cut"]].tolist() == [20, 30]
    assert profile.layers == TRACE.layers
    assert (profile.heap_base, profile.page_bytes) == (HEAP, TRACE.page_bytes)


def test_a_tensor_without_samples_counts_as_accessed_if_samples_were_lost() -> None:
    rows = profile_of(TRACE).accesses
    read = rows[(rows["bytes_read"] > 0) & (rows["pages"] > 0)][0]
    tensor = profile_of(TRACE).tensors[read["tensor"]]
    first = int(tensor["address"]) // PAGE
    pages = TRACE.samples["page"].astype(np.int64)
    rest = TRACE.samples[(pages < first) | (pages >= first + int(read["pages"]))]
    for incomplete in (False, True):
        trace = replace(TRACE, samples=rest, facts={"samples_incomplete": incomplete})
        found = profile_of(trace).accesses
        (row,) = found[(found["stretch"] == read["stretch"]) & (found["tensor"] == read["tensor"])]
        assert row["bytes_read"] == read["bytes_read"]
        assert bool(row["pages"]) == incomplete


def test_the_sources_are_those_that_were_recorded() -> None:
    nothing, no_ops = TRACE.samples[:0], TRACE.op_accesses[:0]
    assert profile_of(TRACE).source == "module+shim"
    assert profile_of(replace(TRACE, samples=nothing)).source == "shim"
    assert profile_of(replace(TRACE, op_accesses=no_ops)).source == "module"
    assert profile_of(replace(TRACE, samples=nothing, op_accesses=no_ops)).source == "none"
