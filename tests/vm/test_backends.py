# SPDX-License-Identifier: Apache-2.0
"""Checks the capabilities of each backend against a program whose accesses are known.

The tests run on each kernel. If the kernel does not support a backend, the backend's
probe must say so.
"""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from sentineld.observe.backend import NO_NODE, Backend, Resolution
from sentineld.observe.backends import BACKENDS

from .guest import TREE, Guest
from .inside.chunks import CHUNK_PAGES, Chunk

pytestmark = [pytest.mark.guest, pytest.mark.apart]

PAGED = [one for one in BACKENDS if one.capabilities.resolution is not Resolution.TENSOR]
"""Backends that observe pages or regions; the tests in tests/integration/shim cover the shim."""

MISSING = {
    "trixie": {},
    "bookworm": {"damon": "no DAMON", "pagemap-scan": "PAGEMAP_SCAN"},
    "trixie-backports": {},
}
"""For each Debian suite, the backends that its kernel does not support, and for each of these
backends a part of the message with which its probe says so."""

DAMON_STAT = "/sys/module/damon_stat/parameters/enabled"
IN_USE = {"trixie-backports": {"damon": "DAMON_STAT"}}
"""Like MISSING, but for backends that are unusable because the kernel's own monitor
damon_stat uses DAMON until it is turned off."""

SURVEY = """
import json
from sentineld.observe.backends import survey
print(json.dumps([verdict.to_json() for verdict in survey()]))
"""

READ_ONLY = (Chunk.READ, Chunk.SLOW)
WRITTEN = (Chunk.WRITTEN, Chunk.BORN, Chunk.WRITTEN_THEN_READ)
IDLE = (Chunk.UNTOUCHED, Chunk.NEVER)

_results: dict[tuple[str, str], dict[str, Any]] = {}


@pytest.fixture(params=PAGED, ids=lambda one: one.name)
def backend(request: pytest.FixtureRequest, suite: str) -> Backend:
    chosen: Backend = request.param
    if chosen.name in MISSING[suite]:
        pytest.skip(f"the kernel of {suite} has no {chosen.name}")
    return chosen


@pytest.fixture
def seen(backend: Backend, suite: str, kernel_guest: Guest) -> dict[str, Any]:
    """The results of observe.py with this backend; it runs once per kernel and backend."""
    key = suite, backend.name
    if key not in _results:
        if backend.name in IN_USE.get(suite, {}):
            kernel_guest.run(f"echo N > {DAMON_STAT}")
        place = f"cd {TREE}/tests/vm/inside && PYTHONPATH={TREE}"
        answer = kernel_guest.run(f"{place} python3 observe.py {backend.name}", timeout=600)
        _results[key] = json.loads(answer.stdout)
    return _results[key]


def chunks(seen: dict[str, Any], *which: Chunk) -> list[dict[str, Any]]:
    """The results of observe.py for these chunks, window by window; see inside/chunks.py."""
    return [window[chunk.name] for window in seen["windows"] for chunk in which]


def births(seen: dict[str, Any]) -> list[dict[str, Any]]:
    return [window[Chunk.BORN.name] for window in seen["windows"]]


def test_unsupported_backends_say_why(kernel_guest: Guest, suite: str) -> None:
    script = f"cd {TREE} && python3 -c {shlex.quote(SURVEY)}"
    verdicts = json.loads(kernel_guest.run(script).stdout)
    problems = {one["name"]: one["problem"] for one in verdicts if not one["usable"]}
    expected = {**MISSING[suite], **IN_USE.get(suite, {})}
    assert problems.keys() == expected.keys()
    for name, cause in expected.items():
        assert cause in problems[name]


def test_only_memory_in_the_ranges_is_reported(seen: dict[str, Any]) -> None:
    assert [window["elsewhere"] for window in seen["windows"]] == [0, 0]


def test_the_programs_data_is_intact(seen: dict[str, Any]) -> None:
    written = [chunk not in IDLE or chunk is Chunk.UNTOUCHED for chunk in Chunk]
    assert seen["sums"] == [3 * CHUNK_PAGES * resident for resident in [*written, True]]


def test_a_killed_process_raises(seen: dict[str, Any]) -> None:
    assert seen["gone"] == "ProcessLookupError"


def test_reads_are_reported_if_claimed(seen: dict[str, Any], backend: Backend) -> None:
    can = backend.capabilities
    if not can.exact:
        return
    expected = CHUNK_PAGES if can.reads else 0
    assert [chunk["pages"] for chunk in chunks(seen, *READ_ONLY)] == [expected] * 4


def test_writes_are_reported(seen: dict[str, Any], backend: Backend) -> None:
    can = backend.capabilities
    assert can.writes
    if not can.exact:
        return
    assert [chunk["pages"] for chunk in chunks(seen, *WRITTEN)] == [CHUNK_PAGES] * 6


def test_writes_are_distinguished_if_claimed(seen: dict[str, Any], backend: Backend) -> None:
    expected = CHUNK_PAGES if backend.capabilities.distinguishes_writes else 0
    assert [chunk["written"] for chunk in chunks(seen, *WRITTEN)] == [expected] * 6
    assert [chunk["written"] for chunk in chunks(seen, *READ_ONLY)] == [0] * 4


def test_births_are_marked_if_claimed(seen: dict[str, Any], backend: Backend) -> None:
    expected = CHUNK_PAGES if backend.capabilities.births else 0
    # The program touches the chunk BORN for the first time in the first of the two windows.
    assert [chunk["born"] for chunk in births(seen)] == [expected, 0]
    others = [chunk for chunk in Chunk if chunk is not Chunk.BORN]
    assert {chunk["born"] for chunk in chunks(seen, *others)} == {0}


def test_nodes_are_reported_if_claimed(seen: dict[str, Any], backend: Backend) -> None:
    assert seen["moved"] == CHUNK_PAGES
    if backend.capabilities.nodes:
        assert [chunk["nodes"] for chunk in chunks(seen, Chunk.SLOW)] == [[1], [1]]
        assert [chunk["nodes"] for chunk in chunks(seen, Chunk.READ)] == [[0], [0]]
    else:
        reported = {node for chunk in chunks(seen, *Chunk) for node in chunk["nodes"]}
        assert reported <= {NO_NODE}


def test_untouched_memory_is_not_reported(seen: dict[str, Any], backend: Backend) -> None:
    idle = chunks(seen, *IDLE) + [seen["idle"][chunk.name] for chunk in Chunk]
    if backend.capabilities.exact:
        assert {chunk["pages"] for chunk in idle} == {0}
    else:
        assert max(chunk["heat"] for chunk in idle) < 0.1


def test_heat_ranks_memory_by_access_frequency(seen: dict[str, Any], backend: Backend) -> None:
    if not backend.capabilities.frequency:
        assert {chunk["heat"] for chunk in chunks(seen, Chunk.WRITTEN)} == {1.0}
        return
    for window in seen["windows"]:
        warm, idle = window[Chunk.SLOW.name], window[Chunk.UNTOUCHED.name]
        for hot in (window[Chunk.READ.name], window[Chunk.WRITTEN.name]):
            assert hot["pages"] >= 0.9 * CHUNK_PAGES
            assert hot["heat"] > 2 * warm["heat"] > 4 * idle["heat"]
