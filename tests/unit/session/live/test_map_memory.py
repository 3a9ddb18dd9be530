# SPDX-License-Identifier: Apache-2.0
"""The limits on the memory of residency maps, alone and in the management of a process."""

from __future__ import annotations

import os

import pytest

from sentineld.base.errors import SentinelError
from sentineld.session.live import managed as managed_module
from sentineld.session.live.divergence import Patience
from sentineld.session.live.managed import Managed
from sentineld.session.live.map_memory import MapMemory
from sentineld.session.live.shapes import Planned, Shape
from tests.unit.plan.toys import PAGE, toy_plan, toy_profile, two_tiers
from tests.unit.toyprocess import ToyPages, toy_linked

ONE, OTHER = 1000, 1001


def pages(count: int) -> list[tuple[int, int]]:
    return [(1 << 30, count * PAGE)]


def test_a_user_s_maps_are_limited_until_they_are_released() -> None:
    memory = MapMemory(30, 1 << 30)
    with memory.held(ONE, 1, pages(6)):
        with (
            pytest.raises(SentinelError, match=f"maps of user {ONE}'s processes") as caught,
            memory.held(ONE, 2, pages(5)),
        ):
            pass
        assert caught.value.code == "busy"
        with memory.held(ONE, 2, pages(4)), memory.held(OTHER, 3, pages(10)):
            pass
    with memory.held(ONE, 2, pages(10)):
        pass


def test_the_maps_of_all_users_are_limited() -> None:
    memory = MapMemory(30, 45)
    with (
        memory.held(ONE, 1, pages(8)),
        memory.held(OTHER, 2, pages(7)),
        pytest.raises(SentinelError, match="all processes"),
        memory.held(OTHER, 3, pages(1)),
    ):
        pass


def test_a_process_s_maps_count_while_it_is_managed(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = MapMemory(33, 33)  # the toy has 5 pages of arena and 6 pages of heap
    monkeypatch.setattr(managed_module, "MEMORY", memory)
    linked, toy = toy_linked(), ToyPages()

    def manage() -> Managed:
        planned = Planned(Shape(1, ""), toy_profile(), toy_profile(), toy_plan(), 7 * PAGE, 0.0)
        link, tiers = linked.link, two_tiers(1e12)
        return Managed(link, planned, tiers, toy.memory, lambda _: None, Patience())

    managed = manage()
    with pytest.raises(SentinelError, match="page maps") as caught:
        manage()
    assert caught.value.code == "busy"
    managed.stop()
    manage().stop()
    linked.set(arena_bytes=100)  # an impossible size
    with pytest.raises(SentinelError, match="impossible"):
        manage()
    with memory.held(os.getuid(), 1, pages(11)):  # nothing is counted any more
        pass
    linked.close()
