# SPDX-License-Identifier: Apache-2.0
"""A toy trainer that emits the data of shim and module: ring records, samples, operators' accesses.

It allocates from a simple page-aligned heap, touches whole tensors and passes boundaries. Its clock
advances by a fixed time per allocation, free, boundary and operator, plus a time in proportion to
the bytes that an operator touches. The trainer is deterministic.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sentineld.model.protocol import NOT_IN_SEQUENCE, Alloc, Boundary, Event
from sentineld.model.records import OP_ACCESS_DTYPE, RECORD_DTYPE, SAMPLE_DTYPE, Records

PAGE = 4096
HEAP = 0x10_0000_0000
MIB = 1 << 20


@dataclass
class Tensor:
    address: int
    bytes: int
    cursor: int | None = None
    step: int = 0

    @property
    def pages(self) -> int:
        return -(-self.bytes // PAGE)


@dataclass
class Trainer:
    """Emulates one training process as shim and module observe it."""

    bytes_per_s: float = 1e9  # rate at which operators touch memory
    op_ns: int = 20_000  # fixed time per operator
    epochs: bool = True  # whether step and boundary records contain the epoch
    now_ns: int = 1_000_000
    layers: list[str] = field(default_factory=lambda: [""])  # layer names in order of first use
    rows: list[tuple[int, ...]] = field(default_factory=list)
    touched: list[tuple[int, ...]] = field(default_factory=list)  # first page, pages, epoch, write
    ops: list[tuple[int, int, int, bool, bool]] = field(default_factory=list)
    step: int = 0
    cursor: int = 0
    boundary_index: int = 0
    epoch: int = 0
    layer: int = 0
    live: dict[int, Tensor] = field(default_factory=dict)
    free_blocks: list[list[int]] = field(default_factory=lambda: [[HEAP, 1 << 36]])
    cuts: tuple[int, ...] = ()

    def record(self, address: int, size: int, value: int, event: int, detail: int = 0) -> None:
        self.rows.append((self.now_ns, address, size, value, self.layer, event, detail))

    def begin_step(self) -> None:
        self.step += 1
        self.cursor = self.boundary_index = self.layer = 0
        self.epoch += 1
        self.record(self.epoch if self.epochs else 0, self.step, 0, Event.STEP)
        for tensor in self.live.values():
            self.record(tensor.address, tensor.bytes, NOT_IN_SEQUENCE, Event.ALLOC, Alloc.LIVE)
        self._pass_boundary(Boundary.STEP)

    def boundary(self, kind: Boundary, layer: str = "") -> None:
        if layer not in self.layers:
            self.layers.append(layer)
        self.layer = self.layers.index(layer)
        self.epoch += 1
        self._pass_boundary(kind)

    def alloc(self, size: int) -> Tensor:
        if self.step and self.cursor in self.cuts:
            self.epoch += 1
            self._pass_boundary(Boundary.CUT)
        needed = -(-size // PAGE) * PAGE
        block = min((b for b in self.free_blocks if b[1] >= needed), key=lambda b: (b[1], b[0]))
        tensor = Tensor(block[0], size, self.cursor if self.step else None, self.step)
        block[0] += needed
        block[1] -= needed
        self.live[tensor.address] = tensor
        if self.step:
            self.record(tensor.address, size, self.cursor, Event.ALLOC)
            self.cursor += 1
        self.now_ns += 1000
        return tensor

    def free(self, *tensors: Tensor) -> None:
        for tensor in tensors:
            del self.live[tensor.address]
            inside = tensor.cursor is not None and tensor.step == self.step
            value = tensor.cursor if inside and tensor.cursor is not None else NOT_IN_SEQUENCE
            self.record(tensor.address, tensor.bytes, value, Event.FREE)
            self.free_blocks.append([tensor.address, tensor.pages * PAGE])
            self.free_blocks.sort()
            merged = [self.free_blocks[0]]
            for block in self.free_blocks[1:]:
                if merged[-1][0] + merged[-1][1] == block[0]:
                    merged[-1][1] += block[1]
                elif block[1]:
                    merged.append(block)
            self.free_blocks = merged
            self.now_ns += 1000

    def touch(self, reads: list[Tensor], writes: list[Tensor]) -> None:
        """Run one operator that reads and writes whole tensors."""
        for tensors, write in ((reads, False), (writes, True)):
            for tensor in tensors:
                self.ops.append((self.now_ns, tensor.address, tensor.bytes, write, False))
                self.touched.append((tensor.address // PAGE, tensor.pages, self.epoch, int(write)))
        self.now_ns += self.op_ns + int(
            sum(t.bytes for t in (*reads, *writes)) / self.bytes_per_s * 1e9
        )

    def finish(self) -> None:
        """Record the beginning of one more step; this record ends the training's last step."""
        self.step += 1
        self.epoch += 1
        self.record(self.epoch if self.epochs else 0, self.step, 0, Event.STEP)

    def take_records(self) -> Records:
        records = np.array(self.rows, dtype=RECORD_DTYPE)
        self.rows.clear()
        return records

    def take_samples(self) -> Records:
        """For each touch of a tensor since the last call, one record for each of its pages."""
        touched = np.array(self.touched, dtype=np.int64).reshape(-1, 4)
        self.touched.clear()
        first, pages, epoch, write = touched.T
        row = np.repeat(np.arange(len(touched)), pages)
        samples = np.zeros(len(row), SAMPLE_DTYPE)
        begins = np.cumsum(pages) - pages
        samples["page"] = first[row] + np.arange(len(row)) - begins[row]
        samples["epoch"], samples["flags"] = epoch[row], write[row]
        return samples

    def take_ops(self) -> Records:
        ops = np.array(self.ops, dtype=OP_ACCESS_DTYPE)
        self.ops.clear()
        return ops

    def _pass_boundary(self, kind: Boundary) -> None:
        address = self.epoch if self.epochs else 0
        self.record(address, self.cursor, self.boundary_index, Event.BOUNDARY, kind)
        self.boundary_index += 1
        self.now_ns += 2000
