# SPDX-License-Identifier: Apache-2.0
"""Traces as versioned .npz files.

A trace file is a zip archive of .npy tables without pickles. It is untrusted: the reader checks
each table's type, shape and length before it reads the table. It then checks that the tables are
consistent.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from sentineld.base.errors import SentinelError
from sentineld.base.npz import DAMAGED_ERRORS
from sentineld.base.text import printable
from sentineld.model.kernel_events import FAULT_DTYPE
from sentineld.model.records import (
    OP_ACCESS_DTYPE,
    RECORD_DTYPE,
    SAMPLE_DTYPE,
    MemoryMapping,
    Records,
    TensorName,
)
from sentineld.model.tiers import Overlap, Tier, Tiers
from sentineld.profile.steps import LiveTensor, Step
from sentineld.profile.trace import Trace
from sentineld.profile.trace_check import problem_of

TRACE_FORMAT = "sentineld trace"
TRACE_VERSION = 1

STEP_DTYPE = np.dtype(
    [
        ("records", "<u8"),  # number of this step's rows in the table of records
        ("live", "<u8"),  # number of this step's rows in the table of live tensors
        ("number", "<u8"),
        ("end_ns", "<u8"),
        ("end_epoch", "<u8"),
    ]
)
LIVE_DTYPE = np.dtype(
    [("address", "<u8"), ("bytes", "<u8"), ("cursor", "<i8"), ("age", "<u4")]  # cursor -1: unknown
)

_TABLES: dict[str, np.dtype[Any]] = {
    "texts": np.dtype("u1"),
    "steps": STEP_DTYPE,
    "records": RECORD_DTYPE,
    "live": LIVE_DTYPE,
    "samples": SAMPLE_DTYPE,
    "op_accesses": OP_ACCESS_DTYPE,
    "cuts": np.dtype("<u4"),
}
_LATER_TABLES: dict[str, np.dtype[Any]] = {"faults": FAULT_DTYPE}
"""Optional tables, which older traces of the same version do not have."""

Table = npt.NDArray[Any]


def write_trace(trace: Trace, file: IO[bytes], compressed: bool = True) -> None:
    """Write a trace into an open file. Raises OSError."""
    live = [
        (address, size, -1 if cursor is None else cursor, age)
        for step in trace.steps
        for address, (size, cursor, age) in step.live.items()
    ]
    steps = [
        (len(step.records), len(step.live), step.number, step.end_ns, step.end_epoch)
        for step in trace.steps
    ]
    texts = {
        "format": TRACE_FORMAT,
        "page_bytes": trace.page_bytes,
        "heap_base": trace.heap_base,
        "arena": list(trace.arena),
        "layers": list(trace.layers),
        "names": [[address, *named] for address, named in trace.names.items()],
        "mappings": [list(mapped) for mapped in trace.mappings],
        "tiers": None if trace.tiers is None else asdict(trace.tiers),
        "facts": dict(trace.facts),
    }
    save = np.savez_compressed if compressed else np.savez
    save(
        file,
        version=np.array(TRACE_VERSION, "<i8"),
        texts=np.frombuffer(json.dumps(texts).encode(), np.uint8),
        steps=np.array(steps, STEP_DTYPE),
        records=np.concatenate([np.empty(0, RECORD_DTYPE), *(s.records for s in trace.steps)]),
        live=np.array(live, LIVE_DTYPE),
        samples=np.asarray(trace.samples, SAMPLE_DTYPE),
        op_accesses=np.asarray(trace.op_accesses, OP_ACCESS_DTYPE),
        cuts=np.asarray(trace.cuts, "<u4"),
        faults=np.asarray(trace.faults, FAULT_DTYPE),
    )


def save_trace(trace: Trace, path: Path) -> None:
    """Write a trace; atomically replaces an existing file. Raises SentinelError."""
    try:
        _require_regular(path)
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            with part.open("xb") as file:
                write_trace(trace, file)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise SentinelError(
            "failed", f"can't write {path}: {error.strerror or error}", "name another file"
        ) from None


def require_writable(path: Path) -> None:
    """Check in advance that a file can be created at this path. Raises SentinelError."""
    folder = path.parent
    try:
        # Both calls raise OSError if a name is too long or a parent folder is not accessible.
        _require_regular(path)
        found = folder.is_dir()
    except OSError as error:
        raise SentinelError(
            "failed", f"can't write {path}: {error.strerror}", "name another file"
        ) from None
    if not found:
        raise SentinelError("failed", f"there is no folder {folder}", "create it, or name another")
    if not os.access(folder, os.W_OK):
        raise SentinelError("not-permitted", f"no permission to write in {folder}", "name another")


def _require_regular(path: Path) -> None:
    """Raise SentinelError if the path has no name, or if anything but a regular file exists there.
    Raises OSError."""
    if not path.name or (path.exists() and not path.is_file()):
        raise SentinelError("failed", f"{path} is not a regular file", "name another file")


def load_trace(path: Path) -> Trace:
    """Read a trace file. Raises SentinelError with the file's name and the problem."""
    try:
        with path.open("rb") as file:
            return read_trace(file, str(path))
    except OSError as error:
        raise SentinelError(
            "failed", f"can't read {path}: {error.strerror or error}", "name a recorded trace"
        ) from None


def read_trace(file: IO[bytes], name: str) -> Trace:
    """Read a trace from an open file. name: the file's name in errors. Raises SentinelError."""
    with _as_sentinel_errors(name), zipfile.ZipFile(file) as archive:
        version = int(_table(archive, name, "version", np.dtype("<i8"), 0))
        if version > TRACE_VERSION:
            raise SentinelError(
                "failed",
                f"{name} is a trace of version {version}, this sentineld reads {TRACE_VERSION}",
                "use the sentineld that recorded it, or a later one",
            )
        if version != TRACE_VERSION:
            raise _unusable(name, f"there is no version {version}")
        tables = {member: _table(archive, name, member, _TABLES[member]) for member in _TABLES}
        present = set(archive.namelist())
        for member, dtype in _LATER_TABLES.items():
            if f"{member}.npy" in present:
                tables[member] = _table(archive, name, member, dtype)
        trace = _trace(name, tables)
        problem = problem_of(trace)
        if problem:
            raise _unusable(name, problem)
        return trace


@contextmanager
def _as_sentinel_errors(name: str) -> Iterator[None]:
    """Convert the libraries' errors for damaged files into SentinelError."""
    try:
        yield
    except SentinelError:
        raise
    except zipfile.BadZipFile as error:
        raise _unusable(name, f"it is damaged or not an .npz file ({error})") from None
    except MemoryError:
        raise _unusable(name, "it needs more memory than there is") from None
    except DAMAGED_ERRORS as error:
        raise _unusable(name, f"{type(error).__name__}: {error}") from None


def _table(
    archive: zipfile.ZipFile, name: str, member: str, dtype: np.dtype[Any], dimensions: int = 1
) -> Table:
    """Read a table after checking its type and length."""
    try:
        info = archive.getinfo(f"{member}.npy")
    except KeyError:
        raise _unusable(name, f"table {member} is missing") from None
    with archive.open(info) as file:
        version = np.lib.format.read_magic(file)
        read_header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }.get(version)
        if read_header is None:
            raise _unusable(name, f"table {member} has the unknown .npy version {version}")
        shape, fortran, found = read_header(file)
        if found != dtype or len(shape) != dimensions or fortran or found.hasobject:
            raise _unusable(name, f"table {member} has a wrong type or shape")
        count = int(np.prod(shape, dtype=object))
        # Compare the header with the file size before allocating memory for the table.
        if count < 0 or file.tell() + count * dtype.itemsize != info.file_size:
            raise _unusable(name, f"table {member} has a wrong length")
        data = file.read()
    if len(data) != count * dtype.itemsize:
        raise _unusable(name, f"table {member} is truncated")
    table: Table = np.frombuffer(data, dtype).reshape(shape)
    return table


def _trace(name: str, tables: dict[str, Table]) -> Trace:
    texts = _printable(json.loads(tables["texts"].tobytes().decode()))
    if not isinstance(texts, dict) or texts.get("format") != TRACE_FORMAT:
        raise _unusable(name, "it is another program's file")
    facts = _of_type(name, texts, "facts", dict)
    layers = _of_type(name, texts, "layers", list)
    if facts.get("faults_recorded") and "faults" not in tables:
        raise _unusable(name, "its table of faults is missing")
    return Trace(
        steps=tuple(_steps(name, tables)),
        samples=tables["samples"],
        op_accesses=tables["op_accesses"],
        cuts=tables["cuts"],
        layers=tuple(str(layer) for layer in layers),
        names={
            int(address): TensorName(str(role), str(text))
            for address, role, text in _of_type(name, texts, "names", list)
        },
        mappings=tuple(
            MemoryMapping(int(start), int(end), str(text))
            for start, end, text in _of_type(name, texts, "mappings", list)
        ),
        tiers=_tiers(texts["tiers"]),
        page_bytes=_of_type(name, texts, "page_bytes", int),
        heap_base=_of_type(name, texts, "heap_base", int),
        arena=_arena(_of_type(name, texts, "arena", list)),
        facts=facts,
        faults=tables.get("faults", np.empty(0, FAULT_DTYPE)),
    )


def _printable(value: Any) -> Any:
    """The JSON value with all texts made printable. The file may come from another user, and
    terminals show names and facts from it."""
    if isinstance(value, dict):
        return {printable(key): _printable(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_printable(one) for one in value]
    return printable(value) if isinstance(value, str) else value


def _of_type(name: str, texts: dict[str, Any], key: str, kind: type) -> Any:
    value = texts.get(key)
    if type(value) is not kind:
        raise _unusable(name, f"its {key} must be of type {kind.__name__}")
    return value


def _arena(value: list[Any]) -> tuple[int, int]:
    address, size = value
    return int(address), int(size)


def _tiers(value: Any) -> Tiers | None:
    if value is None:
        return None
    tiers = tuple(Tier(**{**tier, "nodes": tuple(tier["nodes"])}) for tier in value["tiers"])
    return Tiers(
        tiers,
        float(value["migration_bytes_per_s"]),
        str(value["source"]),
        float(value.get("birth_ns_per_byte", 0.0)),
        bool(value.get("paged", False)),
        Overlap(value.get("overlap", Overlap.NONE)),
        bool(value.get("moves_yield", False)),
    )


def _steps(name: str, tables: dict[str, Table]) -> Iterator[Step]:
    counts = tables["steps"]
    for column in ("records", "live"):
        if sum(counts[column].tolist()) != len(tables[column]):
            raise _unusable(name, f"the sizes of its steps do not match its {column}")
    record = live = 0
    for row in counts.tolist():
        records, lives, number, end_ns, end_epoch = row
        yield Step(
            records=tables["records"][record : record + records],
            number=number,
            end_ns=end_ns,
            end_epoch=end_epoch,
            live=_live(tables["live"][live : live + lives]),
        )
        record, live = record + records, live + lives


def _live(rows: Records) -> dict[int, LiveTensor]:
    return {
        address: LiveTensor(size, None if cursor < 0 else cursor, age)
        for address, size, cursor, age in rows.tolist()
    }


def _unusable(name: str, what: str) -> SentinelError:
    return SentinelError(
        "failed",
        f"{name} is not a usable trace: {what}",
        "record one with: sentinelctl record PID -o FILE",
    )
