# SPDX-License-Identifier: Apache-2.0
"""The probe of a backend that sees writes only: the watch must report exactly the written page."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pytest

from sentineld.observe.backend import AREA_DTYPE, Areas, Ranges, Target
from sentineld.observe.shim_only import NoWatch
from sentineld.observe.writeprobe import reports_written_page
from tests.unit.descriptors import open_descriptors

PAGE = 4096


def area(start: int, size: int) -> Areas:
    areas = np.zeros(1, AREA_DTYPE)
    areas["start"], areas["bytes"] = start, size
    return areas


class Claiming(NoWatch):
    """A watch that calls claim() with the start of the watched range and reports the areas that
    claim() returns."""

    def __init__(self, target: Target, claim: Callable[[int], Areas], log: list[str]) -> None:
        super().__init__(target)
        self._claim, self._log, self._target = claim, log, target
        self._start = 0

    def begin(self, ranges: Ranges) -> None:
        ((self._start, size),) = ranges
        assert size == 2 * PAGE
        self._log.append("begin")

    def end(self) -> Areas:
        self._log.append("end")
        return self._claim(self._start)

    def close(self) -> None:
        assert self._target.writes is not None
        self._target.writes.close()
        self._log.append("close")


@pytest.mark.parametrize(
    ("claim", "works"),
    [
        (lambda start: area(start, PAGE), True),
        (lambda start: area(start + PAGE, PAGE), False),
        (lambda start: area(start, 2 * PAGE), False),
        (lambda start: area(start, PAGE)[:0], False),
        (lambda start: np.concatenate([area(start, PAGE), area(start + PAGE, PAGE)]), False),
    ],
)
def test_only_the_written_page_will_do(claim: Callable[[int], Areas], works: bool) -> None:
    log: list[str] = []
    opened: list[tuple[int, int]] = []

    def open_control(start: int, size: int) -> int:
        opened.append((start, size))
        return os.open("/dev/null", os.O_RDWR)

    before = open_descriptors()

    def open_watch(target: Target) -> Claiming:
        assert target.pid == os.getpid()
        assert target.writes is not None
        assert target.writes.way == "a way"
        return Claiming(target, claim, log)

    assert reports_written_page("a way", open_watch, open_control) is works
    assert log == ["begin", "end", "close"]
    assert open_descriptors() <= before
    ((start, size),) = opened
    assert (start % PAGE, size) == (0, 2 * PAGE)


def test_a_control_descriptor_that_does_not_open_is_the_callers_error() -> None:
    def refuse(start: int, size: int) -> int:
        raise PermissionError("no")

    with pytest.raises(PermissionError):
        reports_written_page("a way", NoWatch, refuse)
