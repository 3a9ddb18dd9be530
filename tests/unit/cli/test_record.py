# SPDX-License-Identifier: Apache-2.0
"""The verb record: the daemon's trace arrives in the caller's file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from sentineld.control.frames import Message
from sentineld.control.server import WithFile
from sentineld.profile.trace_file import load_trace, write_trace
from tests.unit.cli.answering import answering
from tests.unit.traces import recorded

TRACE = recorded()


def sent(_: Message) -> WithFile:
    """The trace, as the daemon sends it."""
    fd = os.memfd_create("trace")
    with os.fdopen(fd, "wb", closefd=False) as file:
        write_trace(TRACE, file, compressed=False)
    return WithFile({"notes": ["a note"]}, fd)


def test_the_file_holds_the_daemons_trace(tmp_path: Path) -> None:
    file = tmp_path / "trace.npz"
    with answering(tmp_path, record=sent) as ctl:
        lines = ctl.output("record", "7", "-o", str(file), "--steps", "3").splitlines()
    assert lines[0].startswith(f"recorded {file}, ")
    assert len(lines) > 1
    assert ctl.asked == [("record", {"pid": 7, "steps": 3})]
    loaded = load_trace(file)
    assert [step.number for step in loaded.steps] == [step.number for step in TRACE.steps]
    assert np.array_equal(loaded.samples, TRACE.samples)
    assert [path.name for path in tmp_path.glob("trace*")] == ["trace.npz"]


def test_json_has_the_notes_and_the_summary(tmp_path: Path) -> None:
    file = tmp_path / "trace.npz"
    with answering(tmp_path, record=sent) as ctl:
        answer = json.loads(ctl.output("record", "7", "-o", str(file), "--json"))
    assert (answer["schema"], answer["file"], answer["notes"]) == (1, str(file), ["a note"])
    assert len(answer) > 3


def test_a_file_that_cannot_be_written_is_refused_before_the_daemon_is_asked(
    tmp_path: Path,
) -> None:
    with answering(tmp_path, record=sent) as ctl:
        error = ctl.refused("record", "7", "-o", str(tmp_path / "none" / "trace.npz"))
    assert error.hint
    assert ctl.asked == []


def test_an_answer_that_is_no_trace_leaves_no_file(tmp_path: Path) -> None:
    def wrong(_: Message) -> WithFile:
        fd = os.memfd_create("trace")
        os.write(fd, b"PK\3\4 not a trace")
        return WithFile({"notes": []}, fd)

    with answering(tmp_path, record=wrong) as ctl:
        error = ctl.refused("record", "7", "-o", str(tmp_path / "trace.npz"))
    assert "the daemon's trace" in error.message
    assert list(tmp_path.glob("trace*")) == []


@pytest.mark.parametrize("arguments", [("7",), ("7", "-o", "x.npz", "--steps", "101")])
def test_file_and_steps_are_checked(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    with answering(tmp_path, record=sent) as ctl:
        assert ctl.run("record", *arguments).exit_code == 2
    assert ctl.asked == []
