# SPDX-License-Identifier: Apache-2.0
"""A minimal daemon for the shim's tests.

It uses the real protocol and a real socket; the training is a real process. The daemon's planner
overlays the tensors of a recorded step in one arena; see overlay().
"""

from __future__ import annotations

import array
import itertools
import json
import mmap
import os
import select
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sentineld.model import protocol
from sentineld.model.protocol import Alloc, Boundary, Event, Flag, Mode
from tests.integration.shim.place import HERE, Place
from tests.integration.shim.plain import PlainTrainings

PAGE = 4096
PATIENCE_SECONDS = 300.0
"""Time limit of a wait. On a loaded machine, a step in which torch.compile compiles the model takes
more than a minute."""
FURTHER_STEPS = 100
"""Steps beyond those that a test needs. If the training's place (see place.py) is not HERE, a
training without the shim also runs these steps, so that later tests can use their losses."""
TRAIN = Path(__file__).parent / "train.py"
ROOT = Path(__file__).parents[3]
EAGER = ROOT / "tests/eager.py"

Records = npt.NDArray[np.void]


class Daemon:
    """Listens at path and serves one shim at a time."""

    def __init__(self, path: Path, place: Place = HERE) -> None:
        """place: where the trainings run."""
        self.path = path
        self.place = place
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(1)
        self._listener.settimeout(PATIENCE_SECONDS)
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)  # not connected yet
        self._stop = threading.Event()

    def accept(self) -> dict[str, Any]:
        """Wait for a shim; returns its hello."""
        self._connection, _ = self._listener.accept()
        self._connection.settimeout(PATIENCE_SECONDS)
        self._received = b""
        self._descriptors: list[int] = []
        self.hello = self.receive("hello")
        control, self.event_fd = self._descriptors
        self._descriptors = []
        self._map = mmap.mmap(control, os.fstat(control).st_size)
        os.close(control)
        self.control = np.frombuffer(self._map, dtype=protocol.CONTROL_DTYPE, count=1)[0:1]
        self.ring = np.frombuffer(
            self._map,
            dtype=protocol.RECORD_DTYPE,
            offset=int(self.word("ring_offset")),
            count=int(self.word("ring_records")),
        )
        self.tail = int(self.word("ring_head"))
        self.set("ring_tail", self.tail)
        self._beat = threading.Thread(target=self._beats, daemon=True)
        self._beat.start()
        self.set("barrier_timeout_ns", 5_000_000_000)
        self.set("moves_done", 2**64 - 1)
        self.send({"type": "welcome", "session": "s1"})
        return self.hello

    def _beats(self) -> None:
        while not self._stop.wait(0.1):
            self.set("heartbeat", time.monotonic_ns())

    def word(self, name: str) -> int:
        return int(self.control[name][0])

    def set(self, name: str, value: int) -> None:
        self.control[name][0] = value

    def flags(self, flags: int) -> None:
        self.set("flags", flags)

    def send(self, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
        body = json.dumps(message).encode()
        frame = struct.pack("<I", len(body)) + body
        rights = array.array("i", descriptors)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else []
        sent = self._connection.sendmsg([frame], ancillary)
        self._connection.sendall(frame[sent:])

    def send_raw(self, data: bytes) -> None:
        self._connection.sendall(data)

    def receive(self, kind: str) -> dict[str, Any]:
        """The next message of this kind; messages of other kinds before it are dropped."""
        while True:
            while len(self._received) >= 4:
                (length,) = struct.unpack_from("<I", self._received)
                if len(self._received) < 4 + length:
                    break
                message = json.loads(self._received[4 : 4 + length])
                self._received = self._received[4 + length :]
                if message["type"] == kind:
                    return message
            data, fds, _, _ = socket.recv_fds(self._connection, 65536, 8)
            if not data:
                raise EOFError("the shim hung up")
            self._received += data
            self._descriptors += fds

    def take_descriptor(self) -> int:
        return self._descriptors.pop(0)

    def hung_up(self) -> bool:
        """Whether the shim closes the connection within PATIENCE_SECONDS."""
        poll = select.poll()
        poll.register(self._connection, select.POLLRDHUP)
        return bool(poll.poll(PATIENCE_SECONDS * 1000))

    def wait_steps(self, count: int) -> None:
        """Wait until the shim has begun `count` more steps."""
        goal = self.word("step") + count
        wait_for(lambda: self.word("step") >= goal)

    def drain(self) -> Records:
        """Read all records in the ring and mark them as read."""
        head = self.word("ring_head")
        indices = np.arange(self.tail, head) % len(self.ring)
        records = self.ring[indices].copy()
        self.tail = head
        self.set("ring_tail", head)
        return records

    def record(self, steps: int, extra_flags: int = 0) -> list[Records]:
        """Record whole steps; returns one array of records per step, with its STEP record first."""
        self.drain()
        self.flags(Flag.RECORD | extra_flags)
        self.wait_steps(steps + 1)
        self.flags(0)
        self.wait_steps(2)
        records = self.drain()
        starts = np.flatnonzero(records["event"] == Event.STEP)
        return [records[a:b] for a, b in itertools.pairwise(starts)][:steps]

    def called(self) -> bool:
        """Whether a shim has connected and waits for accept()."""
        return bool(select.select([self._listener], [], [], 0)[0])

    def hang(self) -> None:
        """Act as a stopped daemon: the heartbeat ends, but the connection stays open."""
        self._stop.set()
        self._beat.join()

    def close(self) -> None:
        """Act as a killed daemon: close the connection without a message; the heartbeat ends."""
        self._stop.set()
        self._connection.close()
        self._listener.close()
        self.path.unlink(missing_ok=True)


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not true within {PATIENCE_SECONDS} s"
        time.sleep(0.002)


def sequence(step: Records) -> list[tuple[int, ...]]:
    """The part of a step that must repeat: births with their sizes, boundaries with their kinds."""
    births = (step["event"] == Event.ALLOC) & (step["detail"] == Alloc.STEP)
    kept = step[births | (step["event"] == Event.BOUNDARY)]
    return [
        (int(r["event"]), int(r["bytes"]), int(r["value"]), int(r["layer"]), int(r["detail"]))
        for r in kept
    ]


def births(step: Records) -> Records:
    """The allocations in the step's sequence, in order."""
    return step[(step["event"] == Event.ALLOC) & (step["detail"] == Alloc.STEP)]


def _memory_events(step: Records) -> Records:
    """The births in the step's sequence and all deaths, in order."""
    own = (step["event"] == Event.ALLOC) & (step["detail"] == Alloc.STEP)
    return step[own | (step["event"] == Event.FREE)]


def _lifetimes(first: Records, second: Records) -> list[tuple[int, int, int]]:
    """For each allocation of the first step, in order: (size, birth, death). Birth and death are
    indices of memory events, counted from the start of the first step."""
    events = np.concatenate([_memory_events(first), _memory_events(second)])
    step_events = len(_memory_events(first))
    made: list[list[int]] = []
    by_address: dict[int, int] = {}
    for index, record in enumerate(events):
        address = int(record["address"])
        if record["event"] == Event.FREE:
            slot = by_address.pop(address, None)
            if slot is not None:
                made[slot][2] = index
        elif index < step_events:
            by_address[address] = len(made)
            made.append([int(record["bytes"]), index, 2 * step_events])
    return [(size, birth, death) for size, birth, death in made]


def _alive(birth: int, death: int, step_events: int) -> npt.NDArray[np.bool_]:
    alive = np.zeros(step_events, dtype=np.bool_)
    alive[np.arange(birth, death) % step_events] = True
    return alive


def overlay(first: Records, second: Records) -> tuple[Records, int]:
    """Plan slots for tensors, largest first, each at the lowest free offset.

    Returns the slots and the arena's size in bytes. A tensor that lives longer than a whole step,
    such as the value of a loop variable, is still alive when the next step makes the same
    allocation. Such a tensor can have no fixed offset and stays in the heap.
    """
    tensors = _lifetimes(first, second)
    step_events = len(_memory_events(first))
    slots = np.zeros(len(tensors), dtype=protocol.SLOT_DTYPE)
    slots["bytes"] = [size for size, _, _ in tensors]
    placed: list[tuple[int, int, npt.NDArray[np.bool_]]] = []
    for slot in sorted(range(len(tensors)), key=lambda n: -tensors[n][0]):
        size, birth, death = tensors[slot]
        if death - birth > step_events:
            continue
        pages = -(-size // PAGE) * PAGE
        alive = _alive(birth, death, step_events)
        offset = 0
        for start, end, other in sorted(placed, key=lambda item: item[0]):
            if start < offset + pages and offset < end and bool((alive & other).any()):
                offset = end
        placed.append((offset, offset + pages, alive))
        slots[slot] = (size, offset, protocol.SlotFlag.PLANNED, 0)
    return slots, max((end for _, end, _ in placed), default=0)


def layout_bytes(
    slots: Records,
    arena_bytes: int,
    boundary_count: int,
    *,
    layout_id: int = 1,
    cuts: tuple[int, ...] = (),
    regions: tuple[tuple[int, int, int], ...] = (),
    waits: tuple[tuple[int, int, int], ...] = (),
    heap_node: int = -1,
) -> bytes:
    """Encode a layout with its tables.

    regions: rows (offset, bytes, node).
    waits: rows (boundary that waits, boundary whose moves it waits for, flags).
    """
    cut_table = np.array(cuts, dtype="<u4")
    region_table = np.array([(*r, 0) for r in regions], dtype=protocol.REGION_DTYPE)
    wait_table = np.zeros(boundary_count, dtype=protocol.WAIT_DTYPE)
    for at, boundary, flags in waits:
        wait_table[at] = (boundary, flags)
    parts, offsets = b"", []
    for table in (slots, cut_table, region_table, wait_table):
        parts += b"\0" * (-len(parts) % 8)
        offsets.append(protocol.LAYOUT_DTYPE.itemsize + len(parts))
        parts += table.tobytes()
    header = np.zeros(1, dtype=protocol.LAYOUT_DTYPE)
    header["magic"], header["version"] = protocol.LAYOUT_MAGIC, protocol.SHIM_VERSION
    header["slot_count"], header["cut_count"] = len(slots), len(cuts)
    header["region_count"], header["boundary_count"] = len(regions), boundary_count
    header["layout_id"], header["arena_bytes"] = layout_id, arena_bytes
    header["heap_node"] = heap_node
    for name, offset in zip(("slots", "cuts", "regions", "waits"), offsets, strict=True):
        header[f"{name}_offset"] = offset
    header["total_bytes"] = protocol.LAYOUT_DTYPE.itemsize + len(parts)
    return header.tobytes() + parts


def memfd(data: bytes) -> int:
    descriptor = os.memfd_create("layout", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(descriptor, data)
    return descriptor


def boundary_count(step: Records) -> int:
    return int((step["event"] == Event.BOUNDARY).sum())


def send_layout(daemon: Daemon, data: bytes, layout_id: int = 1) -> dict[str, Any]:
    """Send a layout and wait for the shim's answer."""
    descriptor = memfd(data)
    daemon.send({"type": "layout", "layout_id": layout_id}, (descriptor,))
    os.close(descriptor)
    return daemon.receive("layout")


def identical_steps(daemon: Daemon) -> tuple[Records, Records]:
    """Record until two consecutive steps have the same sequence."""
    for _ in range(20):
        first, second = daemon.record(2)
        if sequence(first) == sequence(second) and len(births(first)):
            return first, second
    raise AssertionError("no two consecutive steps of the training are the same")


def manage(daemon: Daemon, **options: Any) -> Records:
    """Record steps, plan a layout, send it and wait for 3 steps. Returns the layout's slots."""
    first, second = identical_steps(daemon)
    slots, arena_bytes = overlay(first, second)
    count = boundary_count(first) + len(options.get("cuts", ()))
    answer = send_layout(daemon, layout_bytes(slots, arena_bytes, count, **options))
    assert answer["ok"], answer
    daemon.wait_steps(3)
    return slots


class Training:
    """A training script that runs under the shim in a process of its own.

    The script's arguments: the kind of training, a file whose existence ends it, options.
    """

    def __init__(
        self,
        *arguments: str,
        socket_path: Path,
        stop: Path,
        script: Path = TRAIN,
        place: Place = HERE,
        alone: Sequence[str] = (),
        eager: bool = True,
    ) -> None:
        """Start the training.

        stop: file whose existence ends the training.
        alone: options of this training only; they change no loss, so plain_losses() omits them.
        eager: whether tests/eager.py starts the script, which saves more than half of the time that
            the start takes. Scripts with data-loader workers are never started by tests/eager.py:
            the workers create a torch.Generator, which needs all of torch.
        """
        self._stop = stop
        self._place = place
        self._script = place.path(script)
        self._arguments = arguments
        stderr, name = tempfile.mkstemp(dir=stop.parent)
        self._stderr = Path(name)
        eager = eager and "--workers" not in arguments
        command = ["-m", "sentineld.shim", *((place.path(EAGER),) if eager else ())]
        command += [self._script, arguments[0], place.path(stop)]
        self.process = subprocess.Popen(
            place.command(
                [*command, *arguments[1:], *alone],
                {"SENTINELD_SHIM_SOCKET": place.path(socket_path)},
            ),
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            cwd=ROOT,
        )
        os.close(stderr)
        self._losses: list[str] = []
        self.times_s: list[float] = []
        """The time.monotonic() at which each loss was read."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.times_s.append(time.monotonic())
            self._losses.append(line.rstrip())

    def wait_losses(self, count: int) -> None:
        """Wait until the script has printed `count` losses."""
        wait_for(lambda: len(self._losses) >= count)

    def shim_lines(self) -> list[str]:
        """The shim's lines on stderr so far."""
        lines = self._stderr.read_text().splitlines()
        return [line for line in lines if line.startswith("sentineld.shim: ")]

    def finish(self, managed: bool = True) -> list[str]:
        """End the training after its current step; returns its losses.

        managed: whether the process must have been managed. Asserts that the shim has printed that
        the process is unmanaged if, and only if, `managed` is False.
        """
        self._stop.touch()
        self._reader.join(PATIENCE_SECONDS)
        status = self.process.wait(PATIENCE_SECONDS)
        stderr = self._stderr.read_text()
        assert status == 0, stderr
        assert ("unmanaged" not in stderr) == managed, stderr
        return self._losses

    def ended(self) -> tuple[int, list[str], str]:
        """Wait until the training ends by itself; returns (exit status, losses, stderr)."""
        status = self.process.wait(PATIENCE_SECONDS)
        self._reader.join(PATIENCE_SECONDS)
        return status, self._losses, self._stderr.read_text()

    def plain_losses(self, steps: int) -> list[str]:
        """The first `steps` losses of the same training without the shim."""
        if self._place.name == HERE.name:
            return _PLAIN.losses(self._script, self._arguments, steps)
        key = (self._place.name, self._script, *self._arguments)
        known = _PLAIN_ELSEWHERE.get(key, [])
        if len(known) < steps:
            kind, *options = self._arguments
            script = [self._script, kind, str(steps + FURTHER_STEPS), *options]
            command = self._place.command(script, {})
            done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
            known = _PLAIN_ELSEWHERE[key] = done.stdout.splitlines()
        return known[:steps]


_PLAIN = PlainTrainings()
_PLAIN_ELSEWHERE: dict[tuple[str, ...], list[str]] = {}

__all__ = ["Alloc", "Boundary", "Daemon", "Event", "Mode", "Training", "manage", "wait_for"]
