# SPDX-License-Identifier: Apache-2.0
"""Files of Chrome trace events, and their merging with files of torch.profiler."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from sentineld.base.errors import SentinelError
from sentineld.report.chrome import TENSORS_PID_OFFSET
from sentineld.report.chrome_file import write_events
from tests.unit.report.exporting import PID, TRACE, exporter


def load(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def test_times_are_unix_times(tmp_path: Path) -> None:
    write_events(exporter(), tmp_path / "it.json", None)
    document = load(tmp_path / "it.json")
    first = min(event["ts"] for event in document["traceEvents"] if "ts" in event)
    unix_ns = document["baseTimeNanoseconds"] + first * 1000
    begin_ns = int(TRACE.steps[0].records["time_ns"][0])
    assert unix_ns == pytest.approx(begin_ns + 1_700_000_000_000_000_000, abs=2000)
    # The times are small enough for nanosecond resolution in a float64.
    assert first < 1e13


def a_profile(path: Path, begin_us: float, base_ns: int) -> list[dict[str, Any]]:
    events = [
        {"ph": "M", "name": "process_name", "pid": PID, "args": {"name": "python"}},
        {"ph": "X", "name": "aten::mm", "pid": PID, "tid": 1, "ts": begin_us, "dur": 50.0},
    ]
    document = {"schemaVersion": 1, "baseTimeNanoseconds": base_ns, "traceEvents": events}
    data = json.dumps(document).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return events


@pytest.mark.parametrize("name", ["torch.json", "torch.json.gz"])
def test_a_profile_of_the_same_time_is_not_shifted(tmp_path: Path, name: str) -> None:
    one = exporter()
    begin_us = one.span_us()[0] + 3.0
    base_ns = one.base_ns - 10**12  # not the exporter's base
    torch = a_profile(tmp_path / name, begin_us + 1e9, base_ns)
    written = write_events(one, tmp_path / "it.json", tmp_path / name)
    document = load(tmp_path / "it.json")
    assert written.shifted_us == 0
    assert document["baseTimeNanoseconds"] == base_ns
    assert document["schemaVersion"] == 1
    assert document["traceEvents"][: len(torch)] == torch
    own = document["traceEvents"][len(torch) :]
    # The training process keeps the name that it has in the file of torch.profiler.
    named = [event["pid"] for event in own if event["name"] == "process_name"]
    assert named == [PID + TENSORS_PID_OFFSET]
    first = min(event["ts"] for event in own if "ts" in event)
    assert first == pytest.approx(begin_us + 1e9 - 3.0, abs=0.01)


def test_a_profile_of_another_time_is_aligned(tmp_path: Path) -> None:
    torch = a_profile(tmp_path / "torch.json", 5.0, 0)
    written = write_events(exporter(), tmp_path / "it.json", tmp_path / "torch.json")
    assert written.shifted_us < -1e12
    own = load(tmp_path / "it.json")["traceEvents"][len(torch) :]
    assert min(event["ts"] for event in own if "ts" in event) == pytest.approx(5.0, abs=0.3)


def test_gzipped_output(tmp_path: Path) -> None:
    written = write_events(exporter(), tmp_path / "it.json.gz", None)
    document = json.loads(gzip.decompress((tmp_path / "it.json.gz").read_bytes()))
    assert len(document["traceEvents"]) == written.events > 100


@pytest.mark.parametrize("text", ["", "{", "3", '{"a": 1}', '{"traceEvents": 3}', "[" * 100_000])
def test_files_without_trace_events_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "torch.json").write_text(text)
    with pytest.raises(SentinelError, match="not a file of trace events"):
        write_events(exporter(), tmp_path / "it.json", tmp_path / "torch.json")
    assert not (tmp_path / "it.json").exists()
