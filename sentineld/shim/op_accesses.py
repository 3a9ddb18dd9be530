# SPDX-License-Identifier: Apache-2.0
"""The access step: finds which tensors each operator of one step reads and writes.

torch.profiler records shapes and memory without changing the allocation sequence. The profiler
reports each operator's input storages and the allocations inside the operator, but not its
outputs. This module assumes that the outputs are these allocations plus the inputs that the
operator's schema marks as written. The event tree is a private interface of torch, so callers of
finish() treat any exception as "not supported by this torch".
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sentineld.model.records import OP_ACCESS_DTYPE
from sentineld.shim import op_spans, op_times
from sentineld.shim.native import Native
from sentineld.shim.op_times import TimeMap
from sentineld.shim.quiet import QuietLoggers
from sentineld.shim.script_profiler import FORK, ScriptProfiler

FORWARDS_MAX = 32768
"""Maximum number of forwards of layers in an access step. Without a limit, the profiler's events
could fill the memory if, for example, the step contains a validation pass. When torch 2.13 stops
its profiler, it takes 40 KB and 0.5 ms for each forward, or 190 KB and 2 ms with the layer's
backward. So a step with more forwards could hardly be reported within the minute that the daemon
waits for it."""
TOO_LONG = f"the access step is repeated, because it has more than {FORWARDS_MAX} layer forwards"
OTHER_THREAD = "the access step is repeated, because another thread has ended it"
_COLUMNS = ("address", "bytes", "write", "estimated")
_METADATA_NAMES = """
    alias as_strided as_strided_ broadcast_tensors chunk detach detach_ diagonal empty empty_like
    empty_strided expand expand_as flatten is_nonzero lift_fresh movedim narrow new_empty
    new_empty_strided permute reshape resize_ result_type select set_ slice split split_with_sizes
    squeeze squeeze_ swapaxes t t_ transpose transpose_ unbind unflatten unfold unsafe_chunk
    unsafe_split unsqueeze unsqueeze_ view view_as _reshape_alias _unsafe_view
"""
_OVERWRITE_NAMES = """
    bernoulli_ copy_ exponential_ fill_ normal_ random_ uniform_ zero_ _foreach_copy_ _foreach_zero_
"""
# Operators that use a tensor's metadata but do not touch its bytes.
_METADATA_ONLY = frozenset(f"aten::{name}" for name in _METADATA_NAMES.split())
# Operators that write their mutated argument without reading it.
_OVERWRITES = frozenset(f"aten::{name}" for name in _OVERWRITE_NAMES.split())
# Operators that read only selected elements of their first input: at most as many bytes as their
# output has.
_GATHERS = frozenset(("aten::embedding", "aten::gather", "aten::index", "aten::index_select"))


@dataclass(frozen=True)
class _Tensor:
    """An operator's input."""

    address: int
    bytes: int
    written: bool
    read: bool


@dataclass
class _Allocation:
    time: int  # ns of the profiler's clock
    address: int
    bytes: int
    dies_inside: bool = False  # freed inside the operator that allocated it


@dataclass
class _Touched:
    """Memory that a subtree of events has touched."""

    # Addresses for which _Walk.rows already contains a read (`read`) or a write (`written`).
    read: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)
    # Allocations in the subtree that _operator() of an enclosing operator or, if there is none,
    # _finish_structure() still has to handle.
    allocated: list[_Allocation] = field(default_factory=list)

    def add(self, other: _Touched) -> None:
        self.read |= other.read
        self.written |= other.written
        self.allocated += other.allocated


def _tensor_bytes(metadata: Any) -> int:
    count = 1
    for size, stride in zip(metadata.sizes, metadata.strides, strict=True):
        if stride or size == 0:  # expanded dimensions have stride 0 and take no memory
            count *= size
    return int(count * metadata.dtype.itemsize)


def _is_operator(name: str) -> bool:
    """Whether the event is an operator that touches data, and not a user range or autograd node."""
    structure = name.startswith(("autograd::", "torch::")) or "::" not in name
    return not structure and name not in _METADATA_ONLY


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "storage_data_ptr")


class _Schemas:
    """Looks up which arguments an operator writes, by its name and number of arguments."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], dict[int, bool]] = {}

    def written(self, name: str, count: int) -> dict[int, bool]:
        """Return {position of a written argument: whether it is an `out` argument}. The operator
        does not read its `out` arguments."""
        key = (name, count)
        if key not in self._known:
            self._known[key] = self._look_up(name, count)
        return self._known[key]

    @staticmethod
    def _look_up(name: str, count: int) -> dict[int, bool]:
        for schema in torch._C._jit_get_schemas_for_operator(name):
            if len(schema.arguments) != count:
                continue
            positions = {
                index: bool(argument.is_out)
                for index, argument in enumerate(schema.arguments)
                if argument.alias_info is not None and argument.alias_info.is_write
            }
            if positions or not name.endswith("_"):
                return positions
        # No schema with this number of arguments marks an argument as written. By convention, an
        # operator named *_ (but not *__) writes its first argument.
        return {0: False} if name.endswith("_") and not name.endswith("__") else {}


class _Walk:
    """Turns the profiler's event tree into rows, one for each access."""

    def __init__(self) -> None:
        # (time, end of the operator, address, bytes, write, estimated); times are in ns of the
        # profiler's clock
        self.rows: list[tuple[int, int, int, int, bool, bool]] = []
        # (begin, end) of each operator
        self.spans: list[tuple[int, int]] = []
        self.memory: op_times.Memory = []
        self._schemas = _Schemas()

    def forest(self, events: list[Any]) -> None:
        """Visit the top-level events."""
        for event in events:
            self._finish_structure(self._visit(event))

    def _visit(self, event: Any) -> _Touched:
        fields = event.extra_fields
        kind = type(fields).__name__
        if kind == "_ExtraFields_Allocation":
            return self._memory_event(event, fields)
        seen = _Touched()
        freed: set[int] = set()
        for child in event.children:
            size = getattr(child.extra_fields, "alloc_size", 0)
            if size < 0:
                freed.add(int(child.extra_fields.ptr))
            seen.add(self._visit(child))
        for allocation in seen.allocated:
            allocation.dies_inside |= allocation.address in freed
        if kind == "_ExtraFields_TorchOp" and _is_operator(event.name):
            self._operator(event, fields, seen)
        return seen

    def _memory_event(self, event: Any, fields: Any) -> _Touched:
        time, address, size = int(event.start_time_ns), int(fields.ptr), int(fields.alloc_size)
        self.memory.append((time, address, size))
        if size <= 0:
            return _Touched()
        return _Touched(allocated=[_Allocation(time, address, size)])

    def _finish_structure(self, seen: _Touched) -> None:
        """Add a write for each allocation that was made outside all operators and to which no
        operator has written."""
        for allocation in seen.allocated:
            if allocation.address not in seen.written:
                time = allocation.time + 1
                self._row((time, time), allocation.address, allocation.bytes, True, True)

    def _row(
        self, span: tuple[int, int], address: int, size: int, write: bool, estimated: bool
    ) -> None:
        """Add an access between the two times of `span`."""
        if address and size > 0:
            self.rows.append((*span, address, size, write, estimated))

    def _inputs(self, event: Any, fields: Any) -> Iterator[_Tensor]:
        written = self._schemas.written(event.name, len(fields.inputs))
        overwrites = event.name in _OVERWRITES
        for position, value in enumerate(fields.inputs):
            for metadata in value if isinstance(value, (list, tuple)) else (value,):
                if not _is_tensor(metadata) or not metadata.storage_data_ptr:
                    continue
                yield _Tensor(
                    address=int(metadata.storage_data_ptr),
                    bytes=_tensor_bytes(metadata),
                    written=position in written,
                    read=not (position in written and (overwrites or written[position])),
                )

    def _operator(self, event: Any, fields: Any, seen: _Touched) -> None:
        """Add the operator's accesses, except those that the operators inside it have added."""
        own = [made for made in seen.allocated if made.address not in seen.written]
        # Reads and in-place writes get a time just after the operator's first allocation. If the
        # shim passes a boundary at this allocation, the operator accesses its tensors only after
        # that boundary.
        time = min((made.time + 1 for made in own), default=int(event.start_time_ns))
        end = int(event.end_time_ns)
        self.spans.append((int(event.start_time_ns), end))
        output_bytes = sum(made.bytes for made in own if not made.dies_inside)
        gathers = event.name in _GATHERS
        for tensor in self._inputs(event, fields):
            if tensor.read and tensor.address not in seen.read | seen.written:
                size = min(tensor.bytes, output_bytes) if gathers else tensor.bytes
                self._row((time, end), tensor.address, size, False, gathers)
                seen.read.add(tensor.address)
            if tensor.written and tensor.address not in seen.written:
                self._row((time, end), tensor.address, tensor.bytes, True, False)
                seen.written.add(tensor.address)
            gathers = False  # the tensors after the first one are indices
        for made in own:
            self._row((made.time + 1, end), made.address, made.bytes, True, made.dies_inside)
            if made.dies_inside and made.address not in seen.read:
                self._row((made.time + 2, end), made.address, made.bytes, False, True)
        seen.written.update(made.address for made in own)
        seen.allocated.clear()


def _in_ranges(
    addresses: npt.NDArray[np.uint64], ranges: list[tuple[int, int]]
) -> npt.NDArray[np.bool_]:
    inside = np.zeros(len(addresses), dtype=np.bool_)
    for start, size in ranges:
        inside |= (addresses >= start) & (addresses < start + size)
    return inside


class AccessStep:
    """Runs torch.profiler over one step: the constructor starts it, and finish() stops it.

    The access step ends early if its thread starts a profiler of the script or forks (unless
    through_forks is set), or after FORWARDS_MAX forwards of layers. A script is not supported if
    its profiler starts inside a range (torch.profiler.record_function) that began in the access
    step: at the end of the range, torch would write to the profiler under which the range began,
    whose events are already freed.
    """

    def __init__(self, native: Native, script: ScriptProfiler, through_forks: bool = False) -> None:
        """Raises RuntimeError if the profiler does not start. No profiler of the script may be
        active. through_forks: whether the step goes on if its thread forks; the children then
        inherit the profiler."""
        self.interrupted = ""
        """Why the step's accesses are unknown, as a message for the user; "": they are known."""
        self._native = native
        self._script = script
        self._through_forks = through_forks
        self._thread = threading.current_thread()
        self._forwards = 0
        self._first_record = op_times.ring_head(native)
        self._profiler = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU],
            record_shapes=True,
            profile_memory=True,
        )
        with script.own():
            self._start()

    def _start(self) -> None:
        self._profiler.prepare_trace()
        # Raise the log levels after prepare_trace(), because Kineto sets its log level when it is
        # first used.
        self._loggers = QuietLoggers()
        try:
            self._profiler.start_trace()
            self._script.give_way = self._give_way
        except BaseException:
            # An interrupt (Ctrl+C) or an error may have come after torch had started the profiler.
            with suppress(Exception):
                self._profiler.stop_trace()
            self._loggers.restore()
            raise

    def _stop(self) -> None:
        self._script.give_way = None
        try:
            with self._script.own():
                self._profiler.stop_trace()
        finally:
            self._loggers.restore()

    def before_forward(self) -> None:
        """Count a forward of a layer. Called before each forward, in the forward's thread."""
        if threading.get_ident() != self._thread.ident:
            return
        self._forwards += 1
        if self.interrupted or self._forwards > FORWARDS_MAX:
            self._give_way(TOO_LONG)

    def _give_way(self, reason: str) -> None:
        if reason == FORK and self._through_forks and not self.interrupted:
            return
        # torch can stop a profiler only in the thread in which it started. A thread's end is also
        # the end of its profiler.
        elsewhere = threading.get_ident() != self._thread.ident and self._thread.is_alive()
        if elsewhere or self._script.give_way is None:
            return
        self.interrupted = self.interrupted or reason
        with suppress(Exception):
            self._stop()
        self._profiler.profiler = None  # frees the events

    def finish(self) -> npt.NDArray[np.void] | None:
        """Return the step's accesses to heap and arena as OP_ACCESS_DTYPE, sorted by time_ns; None
        if the step was interrupted.

        If called in a thread other than the constructor's, the step counts as interrupted. The
        profiler then runs on until the constructor's thread calls before_forward() or
        `script.give_way`, or ends.

        Times are CLOCK_MONOTONIC.

        Raises:
            Exception: this version of torch has no event tree, or an incompatible one.
        """
        if threading.get_ident() != self._thread.ident:
            self.interrupted = self.interrupted or OTHER_THREAD
        if self.interrupted:
            return None
        self._stop()
        results = self._profiler.profiler.kineto_results
        walk = _Walk()
        walk.forest(results.experimental_event_tree())
        if not walk.rows or not walk.memory:
            raise RuntimeError("the profiler's event tree has no tensors")
        records = op_times.ring_records(self._native, self._first_record)
        times = TimeMap(records, walk.memory)
        rows = walk.rows
        unreported = times.unreported_allocations()
        table = np.zeros(len(rows) + 2 * len(unreported), dtype=OP_ACCESS_DTYPE)
        columns = list(zip(*rows, strict=True))
        reported = table[: len(rows)]
        ends_ns = np.zeros(len(table), np.uint64)
        reported["time_ns"] = times.monotonic(np.array(columns[0], dtype=np.int64))
        ends_ns[: len(rows)] = times.monotonic(np.array(columns[1], dtype=np.int64))
        for name, column in zip(_COLUMNS, columns[2:], strict=True):
            reported[name] = column
        spans = times.monotonic(np.array(walk.spans, np.int64).reshape(-1, 2).ravel())
        unreported_ends_ns = op_spans.ends_of(unreported["time_ns"], spans.reshape(-1, 2))
        for index, write in ((0, True), (1, False)):
            # Allocations that bypass the profiler are scratch memory of libraries. It is assumed
            # that each of them is written and then read.
            part = table[len(rows) + index * len(unreported) :][: len(unreported)]
            part["time_ns"] = unreported["time_ns"] + 1 + index
            part["address"] = unreported["address"]
            part["bytes"] = unreported["bytes"]
            part["write"] = write
            part["estimated"] = True
            ends_ns[len(rows) + index * len(unreported) :][: len(unreported)] = unreported_ends_ns
        table = op_spans.divided(table, ends_ns, records)
        table = table[_in_ranges(table["address"], op_times.tensor_ranges(self._native))]
        return table[np.argsort(table["time_ns"], kind="stable")]
