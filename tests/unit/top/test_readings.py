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
    training = reading.session(TRAINING)
    assert training is not None
    assert training.managed
    assert training.resident_bytes == (45 * MIB, 160 * MIB)
    later = reading.session(LATER)
    assert later is not None
    assert not later.managed
    assert reading.session(1) is None
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


def test_texts_of_trainings_are_made_printable() -> None:
    answer = status()
    answer["sessions"][0]["reason"] = "\x1b[2J" + "x" * 1000
    (idle,) = (one for one in Reading.of(answer).sessions if one.pid == IDLE)
    assert idle.reason.startswith("?[2Jxx")
    assert len(idle.reason) == 300
    named = residency()
    named["layers"][0]["layer"] = "a\nb"
    assert ResidencyReading.of(TRAINING, named).layers[0].layer == "a?b"


def test_residency_has_the_bytes_by_tier() -> None:
    found = ResidencyReading.of(TRAINING, residency())
    assert found.pid == TRAINING
    assert found.other_bytes == (MIB, 0)
    assert found.layers[-1].bytes_by_tier == (2 * MIB, 30 * MIB)
