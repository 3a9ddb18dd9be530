# SPDX-License-Identifier: Apache-2.0
"""Comparison of page samples with operators' tensors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sentineld.base.errors import SentinelError
from sentineld.model.records import ACCESS_UNKNOWN
from sentineld.profile.steps import boundary_records
from sentineld.profile.trace import Trace, profile_of
from sentineld.report.compare_sources import DifferenceCause, agreement
from tests.unit.traces import recorded


def without(trace: Trace, epochs: slice, pages: tuple[int, int]) -> Trace:
    """The trace without the samples of some pages in some epochs. pages: the first page, and the
    page after the last."""
    taken = boundary_records(trace.access_step)["address"][epochs]
    page = trace.samples["page"].astype(np.int64)
    gone = np.isin(trace.samples["epoch"], taken) & (page >= pages[0]) & (page < pages[1])
    assert gone.any()
    return replace(trace, samples=trace.samples[~gone])


def first_named(trace: Trace) -> tuple[int, int]:
    """The first page of the first parameter, and the page after the parameter's last page."""
    address = min(trace.names)
    return address // trace.page_bytes, address // trace.page_bytes + 8


def test_both_sources_of_a_toy_training_agree() -> None:
    found = agreement(recorded())
    assert found.pairs > 50
    assert found.differences == ()
    assert found.seen_share == 1.0


def test_a_tensor_without_samples_is_a_difference() -> None:
    trace = recorded()
    found = agreement(without(trace, slice(None), first_named(trace)))
    addresses = profile_of(trace).tensors["address"]
    assert {int(addresses[one.tensor]) for one in found.differences} == {min(trace.names)}
    assert {one.why for one in found.differences} == {DifferenceCause.SHAPE_ONLY}
    assert found.seen_share == 1 - len(found.differences) / found.pairs
    assert found.to_json()["differences"]["shape_only"] == len(found.differences)


def test_a_tensor_that_is_never_seen_was_not_seen_in_an_adjacent_layer() -> None:
    trace = recorded()
    tensors = profile_of(trace).tensors
    unseen = agreement(replace(trace, samples=trace.samples[:1]))
    named = {one.tensor for one in unseen.differences}
    for tensor in sorted(named):
        first = int(tensors["address"][tensor]) // trace.page_bytes
        past = first - -int(tensors["bytes"][tensor]) // trace.page_bytes
        found = agreement(without(trace, slice(None), (first, past)))
        causes = {one.why for one in found.differences if one.tensor == tensor}
        assert causes == {DifferenceCause.SHAPE_ONLY}


def test_unarmed_pages_are_given_as_the_reason() -> None:
    trace = recorded()
    pages = first_named(trace)
    bare = without(trace, slice(None), pages)
    epochs = boundary_records(trace.access_step)["address"]
    marks = np.zeros(len(epochs), trace.samples.dtype)
    marks["page"], marks["more_pages"] = pages[0] + 2, 3
    marks["epoch"], marks["node"], marks["flags"] = epochs, 255, ACCESS_UNKNOWN
    found = agreement(replace(bare, samples=np.concatenate([bare.samples, marks])))
    assert found.differences
    assert {one.why for one in found.differences} == {DifferenceCause.UNKNOWN}


def test_pages_of_a_managed_step_may_have_been_in_flight() -> None:
    trace = recorded()
    managed = replace(trace, facts={**trace.facts, "managed": True})
    found = agreement(without(managed, slice(None), first_named(trace)))
    assert {one.why for one in found.differences} == {DifferenceCause.IN_FLIGHT}


def test_a_missing_source_is_an_error() -> None:
    trace = recorded()
    with pytest.raises(SentinelError, match="no page samples"):
        agreement(replace(trace, samples=trace.samples[:0]))
    with pytest.raises(SentinelError, match="no operators' accesses"):
        agreement(replace(trace, op_accesses=trace.op_accesses[:0]))
