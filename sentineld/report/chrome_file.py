# SPDX-License-Identifier: Apache-2.0
"""Write Chrome trace event files, optionally merged with the events of torch.profiler."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentineld.base.errors import SentinelError
from sentineld.report.chrome import Event, Exporter

GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class WrittenEvents:
    """The numbers of written events, and the shift of the trace's events in time."""

    events: int  # number of the trace's events
    beside: int  # number of events merged from the file of torch.profiler
    shifted_us: float
    """Time by which the trace's events were shifted, so that they begin when the events of
    torch.profiler's file begin; 0 if the times overlap or there is no such file."""


def write_events(exporter: Exporter, path: Path, beside: Path | None) -> WrittenEvents:
    """Write a trace's events; the file is gzipped if its suffix is .gz. Raises SentinelError.

    beside: a file that torch.profiler's export_chrome_trace wrote; its events are merged into the
        output.
    """
    document: dict[str, Any] = {}
    others: list[Any] = []
    if beside is not None:
        document, others = _read(beside)
    base_ns = document.get("baseTimeNanoseconds", 0 if beside else exporter.base_ns)
    if type(base_ns) is not int:
        raise _no_events(beside, "its baseTimeNanoseconds is not an integer")
    shift_us = (exporter.base_ns - base_ns) / 1000
    moved_us = 0.0
    spans = [(e["ts"], e["ts"] + e.get("dur", 0)) for e in others if _is_slice(e)]
    if spans:
        first, last = exporter.span_us()
        begin, end = min(s[0] for s in spans), max(s[1] for s in spans)
        if last + shift_us < begin or first + shift_us > end:
            moved_us = begin - (first + shift_us)
    named = [event.get("pid") for event in others if _names_process(event)]
    own = [
        _shifted(event, shift_us + moved_us)
        for event in exporter.events()
        if not (_names_process(event) and event["pid"] in named)
    ]
    document = {
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": base_ns,
        **document,
        "traceEvents": [*others, *own],
    }
    _write(document, path)
    return WrittenEvents(len(own), len(others), moved_us)


def _shifted(event: Event, by_us: float) -> Event:
    return {**event, "ts": round(event["ts"] + by_us, 3)} if "ts" in event else event


def _names_process(event: Any) -> bool:
    return (
        isinstance(event, dict) and event.get("ph") == "M" and event.get("name") == "process_name"
    )


def _is_slice(event: Any) -> bool:
    return (
        isinstance(event, dict)
        and event.get("ph") == "X"
        and all(isinstance(event.get(key, 0), int | float) for key in ("ts", "dur"))
        and "ts" in event
    )


def _read(path: Path) -> tuple[dict[str, Any], list[Any]]:
    try:
        data = path.read_bytes()
        if data.startswith(GZIP_MAGIC):
            data = gzip.decompress(data)
        document = json.loads(data)
    except (OSError, EOFError, ValueError, RecursionError) as error:
        raise _no_events(path, str(error)) from None
    if isinstance(document, list):
        document = {"traceEvents": document}
    events = document.pop("traceEvents", None) if isinstance(document, dict) else None
    if not isinstance(events, list):
        raise _no_events(path, "it has no traceEvents")
    return document, events


def _write(document: dict[str, Any], path: Path) -> None:
    # Encode in pieces, to avoid a second copy of a large trace in memory.
    pieces: Iterable[str] = json.JSONEncoder(separators=(",", ":")).iterencode(document)
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "wt", encoding="utf-8") as file:
                file.writelines(pieces)
        else:
            with path.open("w", encoding="utf-8") as file:
                file.writelines(pieces)
    except OSError as error:
        raise SentinelError(
            "failed", f"can't write {path}: {error.strerror or error}", "name another file"
        ) from None


def _no_events(path: Path | None, what: str) -> SentinelError:
    return SentinelError(
        "failed",
        f"{path} is not a file of trace events: {what}",
        "give a file that torch.profiler's export_chrome_trace wrote",
    )
