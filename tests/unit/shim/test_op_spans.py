# SPDX-License-Identifier: Apache-2.0
"""If boundaries are passed while an operator runs, its accesses are divided among the stretches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.model import protocol
from sentineld.model.protocol import Event
from sentineld.model.records import OP_ACCESS_DTYPE
from sentineld.shim.op_spans import SHARE_MIN, divided, ends_of

ADDRESS, BYTES = 1 << 20, 1000
NOTHING = np.zeros(0, protocol.RECORD_DTYPE)


def records(boundaries: list[int], frees: tuple[tuple[int, int], ...] = ()) -> np.ndarray:
    """Ring records. boundaries: times of the boundaries. frees: (time, address) of each free."""
    made = np.zeros(len(boundaries) + len(frees), protocol.RECORD_DTYPE)
    made["time_ns"] = [*boundaries, *(time for time, _ in frees)]
    made["address"][len(boundaries) :] = [address for _, address in frees]
    made["event"] = [Event.BOUNDARY] * len(boundaries) + [Event.FREE] * len(frees)
    return made


def access(begin_ns: int, address: int = ADDRESS) -> np.ndarray:
    return np.array([(begin_ns, address, BYTES, True, False)], OP_ACCESS_DTYPE)


def parts(begin_ns: int, end_ns: int, found: np.ndarray) -> list[tuple[int, int]]:
    """(time, bytes) of each part of an access from begin_ns to end_ns."""
    made = divided(access(begin_ns), np.array([end_ns], np.uint64), found)
    assert set(made["address"].tolist()) == {ADDRESS}
    assert made["write"].all()
    assert made["estimated"].all() or len(made) == 1
    return list(zip(made["time_ns"].tolist(), made["bytes"].tolist(), strict=True))


def test_an_access_is_divided_in_proportion_to_time() -> None:
    assert parts(100, 200, records([50, 110, 150, 200, 250])) == [
        (100, 100), (110, 400), (150, 500),
    ]  # fmt: skip


def test_a_stretch_with_little_of_the_operators_time_is_left_out() -> None:
    assert parts(1000, 2000, records([1010, 1100])) == [(1010, 91), (1100, 909)]
    assert parts(1000, 2000, records([1985])) == [(1000, BYTES)]
    # If all parts are equally short, none is left out.
    assert len(parts(1000, 2000, records(list(range(1010, 2000, 10))))) == 100


def test_an_access_without_boundaries_inside_is_not_divided() -> None:
    assert parts(100, 200, records([100, 200])) == [(100, BYTES)]
    assert parts(100, 200, NOTHING) == [(100, BYTES)]
    assert parts(100, 0, records([50, 150])) == [(100, BYTES)]


def test_an_access_ends_when_its_tensor_is_freed() -> None:
    frees = ((90, ADDRESS), (160, ADDRESS), (190, ADDRESS), (120, ADDRESS + 4096))
    assert parts(100, 200, records([130, 170], frees)) == [(100, 500), (130, 500)]


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=1, max_size=8),
    st.lists(st.integers(0, 1000), max_size=8, unique=True),
)
def test_parts_begin_at_boundaries_and_add_up(
    spans: list[tuple[int, int]], boundaries: list[int]
) -> None:
    rows = np.concatenate(
        [access(begin, 4096 * at) for at, (begin, _) in enumerate(spans, start=1)]
    )
    ends = np.array([end for _, end in spans], np.uint64)
    found = divided(rows, ends, records(sorted(boundaries)))
    for at, (begin, end) in enumerate(spans, start=1):
        mine = found[found["address"] == 4096 * at]
        edges = [begin, *(time for time in sorted(boundaries) if begin < time < end)]
        times = np.diff([*edges, max(end, begin)])
        least = min(SHARE_MIN * (end - begin), times.max()) if len(edges) > 1 else 0
        long = [edge for edge, time in zip(edges, times, strict=True) if time >= least]
        assert mine["time_ns"].tolist() == long
        assert int(mine["bytes"].sum()) == pytest.approx(BYTES, abs=len(mine))


def test_an_allocation_belongs_to_the_innermost_operator() -> None:
    spans = np.array([[10, 50], [20, 40], [60, 70]], np.uint64)
    times = np.array([5, 15, 20, 39, 40, 55, 65], np.uint64)
    assert ends_of(times, spans).tolist() == [5, 50, 40, 40, 50, 55, 70]
    assert ends_of(times, np.zeros((0, 2), np.uint64)).tolist() == times.tolist()
