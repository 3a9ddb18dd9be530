# SPDX-License-Identifier: Apache-2.0
"""The demo serves the requests of guest_run.py and collects its results."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.demo import __main__ as demo
from tests.demo import counter, machines
from tests.vm.host import MachineError

GUEST = """
from tests.demo.events import request, say, send
say("begun")
step = {"page_touches": [0, 1], "charged_bytes_max": 1}
run = {"fast_share": 0.5, "step_seconds": [1.0], "metered_steps": [step]}
for policy in ("all-fast", "all-slow"):
    if request("count", tensors=[[4096, 8192]]) == "ok":
        assert request("counted") == "ok"
    send("run", policy=policy, **run)
send("run", policy="first-touch", **run)
"""
DONE = 'send("done", budget_bytes=4096, peak_bytes=8192)'


class FakeCounter:
    """Answers like the plugin's Counter. The `seconds` of a count is the number of counts begun so
    far."""

    def __init__(self) -> None:
        self.tensors: list[Any] = []

    def start(self, tensors: list[tuple[int, int]]) -> None:
        self.tensors.append(tensors)

    def stop(self) -> counter.Count:
        misses = {place: [1, 0] for place in counter.PLACES}
        return counter.Count(misses, 0, {}, (1, 2), float(len(self.tensors)))


def machine(program: str, plugin: Any = None) -> machines.Machine:
    return machines.Machine("a test", [sys.executable, "-c", program], plugin)


def test_counts_belong_to_the_run_that_follows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(demo.__file__).parents[2])
    plugin = FakeCounter()
    found = demo.run_all(machine(GUEST + DONE, plugin), time.monotonic())
    counts = [run["plugin"] for run in found["runs"]]
    assert [count and count["modelled_seconds"] for count in counts] == [1.0, 2.0, None]
    assert plugin.tensors == [[(4096, 8192)]] * 2
    assert found["modelled"]
    json.dumps(found)


def test_without_a_plugin_nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(demo.__file__).parents[2])
    found = demo.run_all(machine(GUEST + DONE), time.monotonic())
    assert [run["plugin"] for run in found["runs"]] == [None] * 3
    assert not found["modelled"]


def test_a_guest_that_ends_early_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(demo.__file__).parents[2])
    with pytest.raises(MachineError, match="before its last run"):
        demo.run_all(machine(GUEST), time.monotonic())
