# SPDX-License-Identifier: Apache-2.0
"""The daemon's answers become readings."""

from __future__ import annotations

import pytest

from sentineld.top.readings import Reading, ResidencyReading, SessionReading
from tests.unit.top.answers import IDLE, LATER, MIB, TRAINING, residency, status


def test_sessions_are_sorted_by_process() -> None:
    reading = Reading.of(status())
    assert [one.pid for one in reading.sessions] == [TRAINING, LATER, IDLE]
    assert (reading.version, reading.pid, reading.memory_bytes) == ("0.1.0", 900, 84 * MIB)
    training = reading.session(str(TRAINING))
    assert training is not None
    assert training.managed
    assert training.resident_bytes == (45 * MIB, 160 * MIB)
    later = reading.session(str(LATER))
    assert later is not None
    assert not later.managed
    assert reading.session("1") is None
    assert reading.session(None) is None


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({}, "emulated tiers (cxl)"),
        ({"emulated": "", "paged": "/var/lib/sentineld"}, "paged tiers"),
        ({"emulated": ""}, "2 tiers"),
        ({"emulated": "", "tiers": []}, "no tiers"),
    ],
)
def test_the_kind_of_tiers_is_named(change: dict[str, object], text: str) -> None:
    assert Reading.of({**status(), **change}).tiers == text


def test_an_older_daemon_leaves_fields_out() -> None:
    answer = {"version": "0.0.9", "pid": 7, "sessions": [{"pid": 8, "state": "managed"}]}
    reading = Reading.of(answer)
    assert (reading.time_ns, reading.cpu_ns, reading.tiers) == (0, 0, "no tiers")
    assert reading.sessions == (SessionReading(8, "managed"),)
    assert not reading.sessions[0].managed


def test_a_cgroup_without_processes_is_left_out() -> None:
    sessions = [
        {"pid": 0, "state": "managed", "group": "cgroup /a"},
        {"pid": 8, "state": "managed", "group": "cgroup /b"},
    ]
    reading = Reading.of({"version": "0.1.0", "pid": 7, "sessions": sessions})
    assert [one.group for one in reading.sessions] == ["cgroup /b"]


def test_sessions_of_the_same_process_have_different_keys() -> None:
    """The root of a process tree may also have a session of its own, under the shim."""
    tree = {"pid": 8, "state": "managed", "group": "tree of process 8"}
    sessions = [tree, {"pid": 8, "state": "registered"}]
    reading = Reading.of({"version": "0.1.0", "pid": 7, "sessions": sessions})
    own, group = reading.sessions
    assert (own.title, group.title) == ("process 8", "tree of process 8")
    assert reading.session(own.key) == own
    assert reading.session(group.key) == group


def test_a_group_continues_when_its_first_process_has_ended() -> None:
    def of(pid: int, group: str) -> Reading:
        sessions = [
            {"pid": 3, "state": "managed"},
            {"pid": pid, "state": "managed", "group": group},
        ]
        return Reading.of({"version": "0.1.0", "pid": 7, "sessions": sessions})

    before, after = of(8, "cgroup /a"), of(9, "cgroup /a")
    single, group = before.sessions
    assert after.continued(group) == after.sessions[1]
    assert of(8, "cgroup /b").continued(group) is None
    assert after.continued(single) is None


def test_texts_of_trainings_are_made_printable() -> None:
    answer = status()
    answer["sessions"][0]["reason"] = "\x1b[2J" + "x" * 1000
    (idle,) = (one for one in Reading.of(answer).sessions if one.pid == IDLE)
    assert idle.reason.startswith("?[2Jxx")
    assert len(idle.reason) == 300
    named = residency()
    named["layers"][0]["layer"] = "a\nb"
    assert ResidencyReading.of(str(TRAINING), named).layers[0].layer == "a?b"


def test_residency_has_the_bytes_by_tier() -> None:
    found = ResidencyReading.of(str(TRAINING), residency())
    assert found.key == str(TRAINING)
    assert found.other_bytes == (MIB, 0)
    assert found.layers[-1].bytes_by_tier == (2 * MIB, 30 * MIB)
