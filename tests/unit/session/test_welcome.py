# SPDX-License-Identifier: Apache-2.0
"""The daemon's answer to a hello, the first message of a shim."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sentineld.base.errors import SentinelError
from sentineld.base.units import FastBudget
from sentineld.machine.machine import Machine
from sentineld.machine.substrate import NO_PROVISION, Provision
from sentineld.observe.shim_link import ShimLink
from sentineld.session.welcome import welcome
from tests.unit.emulated import machine
from tests.unit.links import Linked

PLAIN = {"type": "welcome", "session": "7-1"}


@pytest.fixture
def linked() -> Iterator[Linked]:
    made = Linked()
    yield made
    made.close()


@pytest.fixture
def served() -> Machine:
    """A machine whose configuration gives processes 20% of their peak."""
    return machine()


@pytest.mark.parametrize(
    ("announced", "has_layout", "expected"),
    [
        (None, False, None),
        ("30%", False, FastBudget.parse("30%")),
        ("", False, FastBudget.parse("20%")),
        ("much", False, None),
        (30, False, None),
        ("30%", True, None),
    ],
)
def test_a_process_that_will_be_attached_gets_its_pager(
    linked: Linked,
    served: Machine,
    monkeypatch: pytest.MonkeyPatch,
    announced: object,
    has_layout: bool,
    expected: FastBudget | None,
) -> None:
    budgets: list[FastBudget | None] = []

    @contextmanager
    def provision(link: ShimLink, fast: FastBudget | None) -> Iterator[Provision]:
        budgets.append(fast)
        yield Provision({"paging": {"budget_pages": 7}}, ())

    monkeypatch.setattr(served.substrate, "first_provision", provision)
    if announced is not None:
        linked.link.hello["fast"] = announced
    welcome(linked.link, served, "7-1", has_layout=has_layout)
    assert budgets == [expected]
    assert linked.shim.receive() == [{**PLAIN, "paging": {"budget_pages": 7}}]


@pytest.mark.parametrize(
    "error", [SentinelError("failed", "the disk is full"), OSError(errno.EMFILE, "no descriptor")]
)
def test_the_answer_has_no_pager_if_there_is_no_file(
    linked: Linked, served: Machine, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    @contextmanager
    def provision(link: ShimLink, fast: FastBudget | None) -> Iterator[Provision]:
        raise error
        yield NO_PROVISION

    monkeypatch.setattr(served.substrate, "first_provision", provision)
    welcome(linked.link, served, "7-1", has_layout=False)
    assert linked.shim.receive() == [PLAIN]
