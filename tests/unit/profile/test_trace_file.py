# SPDX-License-Identifier: Apache-2.0
"""Traces in files: reading returns what was written, and invalid files are refused."""

from __future__ import annotations

import io
import json
import os
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.base.errors import SentinelError
from sentineld.base.text import printable
from sentineld.model.kernel_events import FAULT_KINDS
from sentineld.model.profile import Profile
from sentineld.model.protocol import Boundary, Event
from sentineld.model.records import OP_ACCESS_DTYPE, SAMPLE_DTYPE, MemoryMapping, TensorName
from sentineld.profile.attribution import build_profile
from sentineld.profile.faults import tensor_faults
from sentineld.profile.steps import StepCutter
from sentineld.profile.trace import Trace, profile_of
from sentineld.profile.trace_file import (
    load_trace,
    read_trace,
    require_writable,
    save_trace,
    write_trace,
)
from tests.unit.traces import recorded, two_tiers
from tests.unit.trainer import HEAP, PAGE, Trainer

Parts = dict[str, Any]


def same(one: Profile, other: Profile) -> bool:
    for field in fields(one):
        left, right = getattr(one, field.name), getattr(other, field.name)
        if isinstance(left, np.ndarray):
            if left.dtype != right.dtype or not np.array_equal(left, right):
                return False
        elif left != right:
            return False
    return True


def written(trace: Trace) -> bytes:
    file = io.BytesIO()
    write_trace(trace, file)
    return file.getvalue()


def read(data: bytes) -> Trace:
    return read_trace(io.BytesIO(data), "it.npz")


def parts_of(data: bytes) -> Parts:
    with np.load(io.BytesIO(data)) as file:
        return dict(file)


def packed(parts: Parts) -> bytes:
    file = io.BytesIO()
    np.savez(file, **parts)
    return file.getvalue()


DATA = written(recorded())
LIVE = profile_of(recorded())
TEXTS = st.text(max_size=9).map(printable)


def test_the_profile_of_a_saved_trace_equals_the_original_s(tmp_path: Path) -> None:
    trace = recorded()
    live = build_profile(
        trace.steps[-1],
        trace.samples,
        trace.op_accesses,
        trace.layers,
        cuts=trace.cuts,
        timed=trace.steps[-2],
        heap_base=HEAP,
    )
    save_trace(trace, tmp_path / "it.npz")
    found = load_trace(tmp_path / "it.npz")
    assert same(profile_of(found), live)
    assert live.source == "module+shim"
    assert [path.name for path in tmp_path.iterdir()] == ["it.npz"]


def test_all_other_fields_are_restored() -> None:
    trace, found = recorded(), read(DATA)
    for name in (
        "layers",
        "names",
        "mappings",
        "tiers",
        "page_bytes",
        "heap_base",
        "arena",
        "facts",
    ):
        assert getattr(found, name) == getattr(trace, name), name
    for name in ("samples", "op_accesses", "cuts", "faults"):
        assert np.array_equal(getattr(found, name), getattr(trace, name)), name
    assert len(found.steps) == len(trace.steps) == 3
    for one, other in zip(found.steps, trace.steps, strict=True):
        assert np.array_equal(one.records, other.records)
        assert (one.number, one.end_ns, one.end_epoch) == (
            other.number,
            other.end_ns,
            other.end_epoch,
        )
        assert one.live == other.live


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Traces of random steps, with or without page samples and operators' accesses; tensors have
    any size and may outlive their step."""
    trainer = Trainer(epochs=draw(st.booleans()))
    for size in draw(st.lists(st.integers(1, 4 * PAGE), max_size=3)):
        trainer.alloc(size)
    program = draw(
        st.lists(
            st.tuples(
                st.sampled_from("alloc free forward backward optimizer touch".split()),
                st.integers(1, 5 * PAGE),
            ),
            max_size=25,
        )
    )
    cuts = draw(st.lists(st.integers(0, 12), unique=True, max_size=2).map(sorted))
    count = draw(st.integers(1, 3))
    trainer.cuts = tuple(cuts)
    for number in range(count):
        if number == count - 1:
            trainer.take_samples(), trainer.take_ops()
        trainer.begin_step()
        for what, size in program:
            live = list(trainer.live.values())
            if what == "alloc":
                trainer.alloc(size)
            elif what == "free" and live:
                trainer.free(live[size % len(live)])
            elif what == "touch" and live:
                trainer.touch([live[size % len(live)]], [live[0]])
            elif what in ("forward", "backward", "optimizer"):
                trainer.boundary(Boundary[what.upper()], f"layer{size % 3}")
    trainer.finish()
    return Trace(
        steps=tuple(StepCutter().feed(trainer.take_records())),
        samples=trainer.take_samples() if trainer.epochs else np.empty(0, SAMPLE_DTYPE),
        op_accesses=draw(st.sampled_from([trainer.take_ops(), np.empty(0, OP_ACCESS_DTYPE)])),
        cuts=np.array(cuts, np.uint32),
        layers=tuple(trainer.layers),
        names=draw(
            st.dictionaries(
                st.integers(0, 1 << 48),
                st.builds(TensorName, TEXTS, TEXTS),
            )
        ),
        mappings=tuple(draw(st.lists(st.builds(MemoryMapping, *[st.integers(0, 99)] * 2, TEXTS)))),
        tiers=draw(st.sampled_from([None, two_tiers()])),
        heap_base=draw(st.sampled_from([0, HEAP])),
    )


@given(traces())
def test_any_trace_is_restored(trace: Trace) -> None:
    found = read(written(trace))
    assert (found.names, found.mappings, found.tiers) == (trace.names, trace.mappings, trace.tiers)
    assert same(profile_of(found), profile_of(trace))


def test_texts_become_printable() -> None:
    """Names in the traces of other users can contain escape sequences for a terminal."""
    parts = parts_of(DATA)
    text("facts", {"kernel": "6.1\x1b[2J", "notes": ["\udcff"]})(parts)
    text("layers", ["a\nb"])(parts)
    text("names", [[4096, "gradient", "\x1b]0;title\x07"]])(parts)
    text("mappings", [[0, 4096, "/tmp/\x9b1m"]])(parts)
    found = read(packed(parts))
    assert found.facts == {"kernel": "6.1?[2J", "notes": ["?"]}
    assert found.layers == ("a?b",)
    assert found.names == {4096: TensorName("gradient", "?]0;title?")}
    assert found.mappings == (MemoryMapping(0, 4096, "/tmp/?1m"),)


def refused(data: bytes, match: str | None = None) -> None:
    with pytest.raises(SentinelError, match=match) as error:
        read(data)
    assert "it.npz" in error.value.message
    assert error.value.hint
    assert "\n" not in str(error.value)


@given(st.integers(0, len(DATA) - 1))
def test_truncated_files_are_refused(length: int) -> None:
    refused(DATA[:length], "not a usable trace")


@given(st.integers(0, len(DATA) - 1), st.integers(1, 255))
def test_changed_bytes_are_refused_or_harmless(at: int, change: int) -> None:
    data = bytearray(DATA)
    data[at] ^= change
    found = None
    try:
        found = read(bytes(data))
    except SentinelError:
        refused(bytes(data))
    if found is not None:  # a change in unused fields of the archive, such as dates
        assert same(profile_of(found), LIVE)


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    refused(b"", "not an .npz file")
    refused(b"#!/bin/sh\n" * 100, "not an .npz file")
    refused(packed({"weights": np.zeros(3)}), "table version is missing")
    foreign = io.BytesIO()
    with zipfile.ZipFile(foreign, "w") as archive:
        archive.writestr("version.npy", b"no numbers")
    refused(foreign.getvalue())
    with pytest.raises(SentinelError, match=r"can't read .*no.npz: No such file"):
        load_trace(tmp_path / "no.npz")
    with pytest.raises(SentinelError, match="Is a directory"):
        load_trace(tmp_path)


def test_other_versions_are_distinguished_from_damage() -> None:
    refused(packed({**parts_of(DATA), "version": np.array(2)}), "version 2, this sentineld reads 1")
    refused(packed({**parts_of(DATA), "version": np.array(0)}), "no version 0")


def test_pickles_are_not_loaded() -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
            return os.system, ("false",)

    bombs = np.array([Bomb()], dtype=object)
    refused(packed({**parts_of(DATA), "samples": bombs}), "samples has a wrong type")


def test_a_table_with_a_false_length_takes_no_memory() -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": SAMPLE_DTYPE.descr, "fortran_order": False, "shape": (1 << 55,)}
    )
    bent = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(DATA)) as archive, zipfile.ZipFile(bent, "w") as other:
        for info in archive.infolist():
            is_samples = info.filename == "samples.npy"
            other.writestr(info.filename, header.getvalue() if is_samples else archive.read(info))
    refused(bent.getvalue(), "samples has a wrong length")


def column(table: str, name: str, row: int, value: int) -> Callable[[Parts], None]:
    def change(parts: Parts) -> None:
        parts[table] = parts[table].copy()
        parts[table][name][row] = value

    return change


def text(key: str, value: Any) -> Callable[[Parts], None]:
    def change(parts: Parts) -> None:
        texts = json.loads(parts["texts"].tobytes())
        texts[key] = value
        parts["texts"] = np.frombuffer(json.dumps(texts).encode(), np.uint8)

    return change


def table(name: str, value: Any) -> Callable[[Parts], None]:
    def change(parts: Parts) -> None:
        parts[name] = value

    return change


@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        (column("steps", "records", 0, 1), "do not match its records"),
        (column("steps", "live", 1, 1 << 60), "do not match its live"),
        (column("steps", "end_ns", 2, 5), "are not ascending"),
        (column("steps", "end_ns", 0, (1 << 64) - 1), "impossible times"),
        (column("records", "event", 0, Event.ALLOC), "does not begin"),
        (column("records", "event", 5, Event.STEP), "several step records"),
        (column("records", "time_ns", 0, 1 << 63), "times"),
        (column("live", "address", 3, 1 << 62), "outside the address space"),
        (column("live", "bytes", 3, (1 << 64) - 1), "outside the address space"),
        (column("samples", "page", 7, 1 << 50), "outside the address space"),
        (column("op_accesses", "bytes", 7, 1 << 63), "outside the address space"),
        (column("op_accesses", "time_ns", 7, 1 << 63), "impossible time"),
        (column("faults", "time_ns", 1, 1 << 63), "impossible time"),
        (column("faults", "kind", 2, len(FAULT_KINDS)), "invalid address or kind"),
        (column("faults", "address", 2, 1 << 60), "invalid address or kind"),
        (lambda parts: parts.pop("faults"), "table of faults is missing"),
        (table("cuts", np.array([30, 20], "<u4")), "cuts are not ascending"),
        (table("cuts", np.array([20, 30], "<i8")), "cuts has a wrong type"),
        (table("records", np.zeros((2, 2), np.uint8)), "records has a wrong type"),
        (table("texts", np.frombuffer(b"{", np.uint8)), "JSON"),
        (table("texts", np.frombuffer(b"\xff", np.uint8)), "Unicode"),
        (text("format", "mine"), "another program's"),
        (text("page_bytes", 4097), "page size is 4097 bytes"),
        (text("page_bytes", "4096"), "page_bytes must be of type int"),
        (text("heap_base", -1), "heap is outside"),
        (text("arena", [-1, 5]), "arena is outside"),
        (text("arena", [1, 2, 3]), "unpack"),
        (text("names", [[1, 2]]), "unpack"),
        (text("tiers", {"tiers": [{"nodes": [0]}]}), "capacity_bytes"),
        (text("facts", []), "facts must be of type dict"),
    ],
)
def test_invalid_values_are_reported(corrupt: Callable[[Parts], None], message: str) -> None:
    parts = parts_of(DATA)
    corrupt(parts)
    refused(packed(parts), message)


def test_a_trace_from_before_faults_were_recorded_is_read() -> None:
    parts = parts_of(DATA)
    del parts["faults"]
    text("facts", {"pid": 7})(parts)
    found = read(packed(parts))
    assert same(profile_of(found), LIVE)
    assert tensor_faults(found) is None


def test_an_incomplete_step_is_refused() -> None:
    trace = recorded()
    step = trace.steps[-1]
    births = np.flatnonzero(step.records["event"] == Event.ALLOC)
    gap = replace(step, records=np.delete(step.records, births[-1] - 40))
    refused(written(replace(trace, steps=(*trace.steps[:-1], gap))), "was not recorded completely")


TABLES = ("records", "samples", "op_accesses", "live", "steps", "faults")


@given(st.data())
def test_random_values_raise_only_sentinel_errors(data: st.DataObject) -> None:
    """A trace with random values is either refused with a SentinelError or can be profiled."""
    parts = parts_of(DATA)
    for _ in range(data.draw(st.integers(1, 4))):
        name = data.draw(st.sampled_from(TABLES))
        changed = parts[name].copy()
        field = data.draw(st.sampled_from(changed.dtype.names))
        row = data.draw(st.integers(0, len(changed) - 1))
        raw = data.draw(
            st.binary(min_size=8, max_size=8)
            | st.sampled_from(
                [bytes(8), b"\xff" * 8, (1).to_bytes(8, "little"), HEAP.to_bytes(8, "little")]
            )
        )
        size = changed.dtype[field].itemsize
        changed[field][row] = np.frombuffer(raw[:size], changed.dtype[field])[0]
        parts[name] = changed
    profile = None
    try:
        trace = read(packed(parts))
        profile = profile_of(trace)
        tensor_faults(trace)
    except SentinelError:
        pass
    if profile is not None:
        assert profile.stretch_count >= 1


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """The mount point of a file system that has room for a small file, but not for a trace."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16k", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_keeps_the_earlier_trace(full_disk: Path) -> None:
    file = full_disk / "it.npz"
    file.write_bytes(b"an earlier trace")
    large = replace(recorded(), samples=np.zeros(1 << 20, SAMPLE_DTYPE))
    with pytest.raises(SentinelError, match=r"can't write .*it\.npz: No space left on device"):
        save_trace(large, file)
    assert [path.name for path in full_disk.iterdir()] == ["it.npz"]
    assert file.read_bytes() == b"an earlier trace"


def test_unwritable_outputs_are_reported(tmp_path: Path) -> None:
    with pytest.raises(SentinelError, match=r"can't write .*No such file"):
        save_trace(recorded(), tmp_path / "none" / "it.npz")
    with pytest.raises(SentinelError, match="there is no folder"):
        require_writable(tmp_path / "none" / "it.npz")
    require_writable(tmp_path / "it.npz")
    for long in (tmp_path / f"{'x' * 300}.npz", tmp_path / ("x" * 300) / "it.npz"):
        with pytest.raises(SentinelError, match="File name too long"):
            require_writable(long)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SentinelError, match="not a regular file"):
        save_trace(recorded(), tmp_path / "pipe")
    for other in (tmp_path / "pipe", tmp_path, Path()):
        with pytest.raises(SentinelError, match="is not a regular file"):
            require_writable(other)
    save_trace(recorded(steps=1), tmp_path / "it.npz")
    save_trace(recorded(), tmp_path / "it.npz")
    assert len(load_trace(tmp_path / "it.npz").steps) == 3
