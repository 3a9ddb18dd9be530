# SPDX-License-Identifier: Apache-2.0
"""OC-DNN's prefetches and evictions, checked by hand: four cells of ten pages, of which two fit
into the fast tier. Here, OC-DNN's operators are the stretches of the step, and its memory blocks
are the cells. Stretch k uses cell k."""

from __future__ import annotations

import pytest

from sentineld.plan.policy import MoveRequest
from sentineld.policies.registry import policy
from sentineld.policies.rivals.oc_dnn import SETTINGS, Adviser, OcDnn
from tests.unit.plan.toys import toy_profile
from tests.unit.policies.rivals.observing import seen


def known(ahead: int, advises: bool) -> Adviser:
    """An adviser that has seen three stretches, in which cells 0 and 3 were fast. If cell 2 is fast
    at the next tick, it became fast later than cell 3."""
    adviser = Adviser(4, ahead, advises)
    for stretch in range(3):
        adviser.tick(seen(stretch, [10, 0, 0, 10]))
    return adviser


@pytest.mark.parametrize(
    ("ahead", "advises", "moves"),
    [
        # Cells 2 and 3 are fast, and the next stretch uses cell 0. The driver evicts cell 3, which
        # became fast before cell 2.
        (0, False, [MoveRequest(3, 1, 10), MoveRequest(0, 0, 10)]),
        # The block of the operator after the next one, cell 1, is prefetched, too. So both fast
        # cells are evicted, cell 3 first.
        (
            1,
            False,
            [
                MoveRequest(3, 1, 10),
                MoveRequest(2, 1, 10),
                MoveRequest(0, 0, 10),
                MoveRequest(1, 0, 10),
            ],
        ),
    ],
)
def test_the_next_operators_blocks_are_fetched(
    ahead: int, advises: bool, moves: list[MoveRequest]
) -> None:
    assert known(ahead, advises).tick(seen(3, [0, 0, 10, 10])) == moves


@pytest.mark.parametrize(("advises", "victim"), [(True, 1), (False, 3)])
def test_the_last_operators_blocks_are_evicted_first(advises: bool, victim: int) -> None:
    # Stretch 1, which used cell 1, has ended. With advice to evict, cell 1 is evicted, because the
    # last operator used it. Without advice, cell 3 is evicted, because it became fast before
    # cell 1.
    adviser = Adviser(4, 0, advises)
    for stretch in (0, 1, 2, 3, 0):
        adviser.tick(seen(stretch, [10, 0, 0, 10]))
    assert adviser.tick(seen(1, [0, 10, 0, 10])) == [
        MoveRequest(victim, 1, 10),
        MoveRequest(2, 0, 10),
    ]


def test_the_settings_are_swept() -> None:
    found = policy("oc-dnn")
    assert isinstance(found, OcDnn)
    reactors = found.reactors(toy_profile())
    assert len(reactors) == len(SETTINGS)
    assert reactors[0][0] == "operators ahead: 1, with advice to evict"
    assert reactors[-1][0] == "operators ahead: 0, without advice to evict"
