# SPDX-License-Identifier: Apache-2.0
"""A training without torch that the daemon can profile, plan for and manage.

It runs the steps of the toy network (tests/unit/workloads.py) and speaks the shim's protocol: ring,
layouts, residency map, operators' accesses.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sentineld.model import protocol
from sentineld.model.protocol import Event, Flag, Mode
from sentineld.model.records import Records
from sentineld.plan.layout_wire import WireLayout, unpack_layout
from tests.hostile.shim_client import HEAP_BYTES, Message, Segment, ShimClient, memfd
from tests.unit.trainer import MIB, PAGE
from tests.unit.workloads import Network, train

NETWORK = Network(blocks=2, weights=1, activation_bytes=2 * MIB, bytes_per_s=20e9)
RING_RECORDS = 1 << 12
STEP_S = 0.01
_MAP_OFFSET = 4096


class Template(NamedTuple):
    """One steady step, and the accesses of its operators; times begin at 0."""

    records: Records
    ops: Records
    duration_ns: int


@functools.cache
def template_of(network: Network, cuts: tuple[int, ...] = ()) -> Template:
    """A steady step of a network with these cuts."""
    trainer = train(network, 4, cuts)
    records = trainer.take_records()
    ops = trainer.take_ops()
    begins = np.flatnonzero(records["event"] == Event.STEP)
    begin, end = begins[-2:]
    begin_ns, end_ns = int(records["time_ns"][begin]), int(records["time_ns"][end])
    step = records[begin:end].copy()
    step["time_ns"] -= begin_ns
    # In records of steps and boundaries, `address` is the number of the sampling epoch. Without the
    # module, it is 0.
    step["address"][np.isin(step["event"], (Event.STEP, Event.BOUNDARY))] = 0
    ops["time_ns"] -= begin_ns
    return Template(step, ops, end_ns - begin_ns)


def layer_names(network: Network) -> list[str]:
    """The names of the layers, in the order of the layers' ids."""
    return train(network, 1).layers


class Residency:
    """The residency map of a layout, on emulated or paged tiers.

    On paged tiers, the memfd of the map also has the queues of the daemon's moves. The moves stay
    in the queues, because this training has no pager.
    """

    def __init__(self, layout: WireLayout, paged: bool = False) -> None:
        arena_pages, heap_pages = layout.arena_bytes // PAGE, HEAP_BYTES // PAGE
        heap_offset = _MAP_OFFSET + -(-arena_pages // 8) * 8
        paging_offset = -(-(heap_offset + heap_pages) // PAGE) * PAGE
        paging_bytes = protocol.PAGING_DTYPE.itemsize if paged else 0
        size = -(-(paging_offset + paging_bytes) // PAGE) * PAGE
        self.fd = memfd(size, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self.map = mmap.mmap(self.fd, size)
        self.header = np.frombuffer(self.map, protocol.RESIDENCY_DTYPE, 1)
        for name, value in {
            "magic": protocol.RESIDENCY_MAGIC,
            "version": protocol.SHIM_VERSION,
            "page_bytes": PAGE,
            "layout_id": layout.layout_id,
            "arena_offset": _MAP_OFFSET,
            "arena_pages": arena_pages,
            "heap_offset": heap_offset,
            "heap_pages": heap_pages,
            "paging_offset": paging_offset if paged else 0,
        }.items():
            self.header[name] = value
        self.arena = np.frombuffer(self.map, np.uint8, arena_pages, _MAP_OFFSET)
        self.arena[:] = 1 + 1  # a page's byte is 1 + its node: all pages are on the slow node 1


class ToyTraining:
    """The training. The caller runs each step with step(), or many steps with run()."""

    def __init__(self, path: Path, network: Network = NETWORK, wait: bool = True) -> None:
        """Register. wait: whether connecting and sending may wait for the daemon."""
        self.segment = Segment(RING_RECORDS, heap_used=64 * MIB, heap_live=16 * MIB)
        self.client = ShimClient(path, wait=wait)
        self.residency: Residency | None = None
        self.steps = 0
        self._network = network
        self._now_ns = time.monotonic_ns()
        self._cuts: tuple[int, ...] = ()
        self._observe = False
        self._position = 0
        self._event = self.client.register(self.segment)
        self.client.send({"type": "layers", "names": layer_names(network)})

    def step(self) -> None:
        """Handle the daemon's messages, then run a step.

        Raises EOFError if the daemon has closed the connection.
        """
        for message in self.client.receive():
            self._handle(message)
        template = template_of(self._network, self._cuts)
        self.steps += 1
        observed, self._observe = self._observe, False
        rows = template.records.copy()
        rows["time_ns"] += self._now_ns
        rows["bytes"][rows["event"] == Event.STEP] = self.steps
        if self.segment.word("flags") & Flag.RECORD:
            self.segment.put(rows)
        for boundary in range(int((rows["event"] == Event.BOUNDARY).sum())):
            self._publish(self.steps << 32 | boundary)
        if observed:
            self._send_accesses(template)
        self._now_ns += template.duration_ns

    def _publish(self, position: int) -> None:
        before, self._position = self._position, position
        self.segment.set(step=self.steps, position=position)
        if before < self.segment.word("wake_position") <= position:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_write(self._event, 1)

    def run(self, until: Callable[[], bool], patience_s: float = 240.0) -> None:
        """Run steps until a condition holds; fails after patience_s."""
        deadline_s = time.monotonic() + patience_s
        while not until():
            assert time.monotonic() < deadline_s, f"not true after {self.steps} steps"
            self.step()
            time.sleep(STEP_S)

    def _handle(self, message: Message) -> None:
        kind = message["type"]
        if kind == "refused":
            raise AssertionError(message)
        if kind == "watch_writes":
            self.client.send({"type": "writes", "way": "", "error": "a toy"})
        elif kind == "profile_ops":
            self._observe = True
        elif kind == "detach":
            self._cuts = ()
            self.segment.set(mode=Mode.DORMANT, arena_base=0, arena_bytes=0, layout_id=0)
        elif kind == "layout":
            self._take_layout(message)

    def _take_layout(self, message: Message) -> None:
        fd = self.client.take_descriptor()
        paging = message.get("paging")
        # On paged tiers, the daemon also sends the pager's eventfd and, if "file" is set in the
        # message, a new paging file.
        for _ in range(1 + paging["file"] if paging else 0):
            os.close(self.client.take_descriptor())
        layout = unpack_layout(os.pread(fd, os.fstat(fd).st_size, 0))
        os.close(fd)
        self._cuts = tuple(layout.cuts.tolist())
        answer = {"type": "layout", "layout_id": message["layout_id"], "ok": True, "error": ""}
        self.segment.set(
            mode=Mode.REPLAY,
            arena_base=2 * HEAP_BYTES + (1 << 40) if layout.arena_bytes else 0,
            arena_bytes=layout.arena_bytes,
            layout_id=layout.layout_id,
        )
        if layout.accesses is None:
            self.client.send(answer)
            return
        self.residency = Residency(layout, paged=paging is not None)
        try:
            self.client.send({**answer, "residency": True}, [self.residency.fd])
        finally:
            os.close(self.residency.fd)

    def _send_accesses(self, template: Template) -> None:
        rows = template.ops.copy()
        rows["time_ns"] += self._now_ns
        fd = os.memfd_create("accesses")
        try:
            os.write(fd, rows.tobytes())
            self.client.send({"type": "accesses", "step": self.steps, "names": []}, [fd])
        finally:
            os.close(fd)

    def close(self) -> None:
        """Hang up."""
        self.client.close()
        self.segment.close()
        os.close(self._event)
