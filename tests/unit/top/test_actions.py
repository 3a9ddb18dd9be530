# SPDX-License-Identifier: Apache-2.0
"""The requests of the live view's keys, and the lines about their results."""

from __future__ import annotations

from sentineld.top.actions import detach, meter, switch
from tests.unit.top.answers import FakeDaemon, status


def test_each_action_asks_once_and_reports() -> None:
    daemon = FakeDaemon(status())
    daemon.answers = {
        "attach": lambda arguments: {"policy": "auto", "fast": arguments["fast"]},
        "detach": lambda _: {},
        "meter": lambda _: {"steps": [{"step": 12, "fast_share": 0.5}]},
    }
    assert switch(daemon, 7, fast="30%") == "process 7: policy auto, fast 30%"
    assert detach(daemon, 7) == "detached 7"
    assert meter(daemon, 7) == ("process 7: the fast tier served 50.0 % of the accesses of step 12")
    assert daemon.asked == [
        ("attach", {"pid": 7, "fast": "30%"}),
        ("detach", {"pid": 7}),
        ("meter", {"pid": 7, "steps": 1}),
    ]
