# SPDX-License-Identifier: Apache-2.0
"""Traces in files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sentineld.errors import SentinelError
from sentineld.observe.model import OP_ACCESS_DTYPE, RECORD_DTYPE, SAMPLE_DTYPE, Trace


def a_trace() -> Trace:
    records = np.zeros(3, RECORD_DTYPE)
    records["time_ns"] = [1, 2, 1 << 63]
    return Trace(
        records=records,
        samples=np.ones(2, SAMPLE_DTYPE),
        op_accesses=np.zeros(0, OP_ACCESS_DTYPE),
        layers=("", "läyer.0"),
        ranges=((1 << 40, 4096), (5, 6)),
        meta={"pid": "12", "torch": "2.6=x"},
    )


def test_a_trace_comes_back_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.npz"
    a_trace().save(path)
    found = Trace.load(path)
    for name in ("records", "samples", "op_accesses"):
        one, other = getattr(a_trace(), name), getattr(found, name)
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)
    assert (found.layers, found.ranges) == (a_trace().layers, a_trace().ranges)
    assert (found.page_bytes, found.meta) == (4096, {"pid": "12", "torch": "2.6=x"})


def test_what_is_no_trace_is_said_so(tmp_path: Path) -> None:
    path = tmp_path / "trace.npz"
    with pytest.raises(FileNotFoundError):
        Trace.load(path)
    path.write_bytes(b"no zip file")
    with pytest.raises(SentinelError, match="is no trace"):
        Trace.load(path)
    np.savez(path, version=np.array(7))
    with pytest.raises(SentinelError, match="version 7, not 1"):
        Trace.load(path)
    a_trace().save(path)
    with np.load(path) as file:
        parts = dict(file)
    parts["samples"] = parts["samples"]["page"]
    np.savez(path, **parts)
    with pytest.raises(SentinelError, match="samples is uint64"):
        Trace.load(path)
