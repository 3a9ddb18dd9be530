# SPDX-License-Identifier: Apache-2.0
"""Fuzzes the shim's end of the registration protocol.

This process trains a small model with the real shim, hooks and C library. The input is the daemon's
actions between steps: sending bytes and frames (each a length and as many bytes) with descriptors,
sending layouts, and writing words of the control segment (memory that the shim shares with the
daemon). The losses must equal those of the same training without a daemon, bit for bit, and no
descriptor may leak.

Not covered: the module's epoch fd, and the use of the userfaultfd that the shim sends.
"""

from __future__ import annotations

import array
import contextlib
import mmap
import os
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import sentineld.shim
from sentineld.model import protocol
from sentineld.model.protocol import Event, Flag
from sentineld.shim import client as shim_client
from sentineld.shim.native import HEAP_VARIABLE, Native, library_path
from sentineld.shim.start import hook
from tests.eager import defer_compiler
from tests.fuzz.script import Script, framed, memfd, open_descriptors
from tests.integration.shim.daemon_side import boundary_count, layout_bytes, overlay, sequence

TURNS_MAX = 60
STEPS_MAX = 24
HEAP_BYTES = 64 << 20
BARRIER_NS_MAX = 1 << 20
DESCRIPTORS_MAX = 18
KINDS = (
    *("welcome", "epoch_fd", "epoch_fd_close", "layout", "layout", "watch_writes", "detach"),
    *("bye", "hello", "profile_ops"),
)
DAEMON_WORDS = ("flags", "heartbeat", "ring_tail", "moves_done", "wake_position")


class Training:
    """The training of a small model under the shim. begin() restarts it, with the same losses."""

    def __init__(self, path: Path) -> None:
        """Load the shim before torch, as sentineld.shim.start does."""
        os.environ[HEAP_VARIABLE] = str(HEAP_BYTES)
        sentineld.shim.disarm()
        self.native = Native(library_path())
        self.native.start()
        defer_compiler()
        import torch

        torch.set_num_threads(1)
        self.native.enable(True)
        client = shim_client.Client(str(path))
        self.shim = hook(self.native, client, str(torch.__version__))
        torch.manual_seed(1)
        self._model = torch.nn.Sequential(
            torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64)
        )
        self._input = torch.randn(64, 64)
        self._begin = [parameter.detach().clone() for parameter in self._model.parameters()]
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.1)
        self._no_grad = torch.no_grad

    def begin(self) -> None:
        """Reset the parameters to their initial values."""
        with self._no_grad():
            for parameter, value in zip(self._model.parameters(), self._begin, strict=True):
                parameter.copy_(value)

    def step(self) -> float:
        """Train one step; returns its loss."""
        loss = self._model(self._input).square().mean()
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return float(loss.item())


class Daemon:
    """The daemon's socket, the shim's control words, and a layout that fits the training."""

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(1)
        self._listener.setblocking(False)
        self._connection: socket.socket | None = None
        self._script = Script(b"")
        self.layout = b""

    def map_words(self, control_fd: int) -> None:
        """Map the control segment, which is the same for the shim's whole life."""
        self._map = mmap.mmap(control_fd, os.fstat(control_fd).st_size)
        self._words = np.frombuffer(self._map, protocol.CONTROL_DTYPE, 1)
        self._ring = np.frombuffer(
            self._map,
            protocol.RECORD_DTYPE,
            int(self._words["ring_records"][0]),
            int(self._words["ring_offset"][0]),
        )

    def begin(self, script: Script) -> None:
        """Set the script, and set the control words to the values that a terminated daemon leaves
        in them.

        Also marks all moves as done. After a barrier's time-out, the shim skips all barriers until
        that barrier's moves are done, so a time-out in an earlier input would otherwise affect this
        input."""
        self._script = script
        done = int(self._words["position"][0])
        self.set(flags=0, heartbeat=0, moves_done=done, barrier_timeout_ns=0)
        self.set(ring_tail=int(self._words["ring_head"][0]))

    def set(self, **values: int) -> None:
        """Write control words."""
        for name, value in values.items():
            self._words[name] = value

    def records(self) -> Any:
        """Read all records in the ring and mark them as read."""
        tail, head = (int(self._words[name][0]) for name in ("ring_tail", "ring_head"))
        taken = self._ring[np.arange(tail, head) % len(self._ring)].copy()
        self.set(ring_tail=head)
        return taken

    def act(self) -> None:
        """Do the script's next action."""
        self._accept()
        script = self._script
        script.pick(
            (
                self._frame,
                self._frame,
                self._layout,
                self._layout,
                self._raw,
                self._word,
                self._word,
                self._record,
                self._hang_up,
            )
        )()
        self._read_all()

    def close(self) -> None:
        """Accept a pending connection and hang up, as if the daemon had been killed."""
        self._accept()
        self._hang_up()

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            connection, _ = self._listener.accept()
            self._hang_up()
            connection.setblocking(False)
            self._connection = connection

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _send(self, data: bytes, fds: list[int]) -> None:
        rights = array.array("i", fds)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if fds else []
        with contextlib.suppress(OSError):
            if self._connection is not None:
                self._connection.sendmsg([data], ancillary, socket.MSG_NOSIGNAL)
        for fd in fds:
            os.close(fd)

    def _read_all(self) -> None:
        with contextlib.suppress(OSError):
            while self._connection is not None:
                data, fds, _, _ = socket.recv_fds(self._connection, 1 << 16, 8)
                for fd in fds:
                    os.close(fd)
                if not data:
                    self._hang_up()

    def _frame(self) -> None:
        """Send a message of a known type with random contents and descriptors."""
        script = self._script
        fields = [f'"type":"{script.pick(KINDS)}"']
        fields += [
            f'"{script.pick(("session", "layout_id", "type"))}":{script.json()}'
            for _ in range(script.byte() % 3)
        ]
        fds = [self._descriptor() for _ in range(script.byte() % 4)]
        self._send(framed(("{" + ",".join(fields) + "}").encode()), fds)

    def _layout(self) -> None:
        """Send the layout that fits the training, with up to three of its bytes changed."""
        script = self._script
        data = bytearray(self.layout)
        for _ in range(script.byte() % 4):
            data[script.number(2) % len(data)] = script.byte()
        message = f'{{"type":"layout","layout_id":{script.json()}}}'
        self._send(framed(message.encode()), [memfd(bytes(data))])

    def _raw(self) -> None:
        """Send bytes or a frame of bytes, perhaps with too many descriptors."""
        script = self._script
        data = script.take(script.byte())
        if script.byte() % 2:
            data = framed(data)
        self._send(data, [self._descriptor() for _ in range(script.byte() % DESCRIPTORS_MAX)])

    def _descriptor(self) -> int:
        script = self._script
        openers = (
            lambda: memfd(script.take(script.byte())),
            lambda: memfd(self.layout),
            lambda: os.eventfd(0, os.EFD_NONBLOCK),
            lambda: os.open("/dev/null", os.O_RDWR),
            lambda: os.open("/dev/zero", os.O_RDONLY),
            lambda: os.open("/", os.O_RDONLY | os.O_DIRECTORY),
            lambda: os.open("/", os.O_PATH),
            lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).detach(),
        )
        return script.pick(openers)()

    def _word(self) -> None:
        """Write a random value to one of the daemon's words. The barrier's time-out stays short, so
        that the fuzzer does not wait long."""
        script = self._script
        kind = script.byte() % 8
        if kind == 0:
            self.set(barrier_timeout_ns=script.number(8) % BARRIER_NS_MAX)
        elif kind == 1:
            self._live()
        else:
            name = DAEMON_WORDS[kind % len(DAEMON_WORDS)]
            size = self._words.dtype[name].itemsize
            self.set(**{name: script.number(size)})

    def _live(self) -> None:
        """Write a current heartbeat. It is stale after 2 s; until then, a barrier waits for its
        moves, but for at most BARRIER_NS_MAX."""
        self.set(heartbeat=time.monotonic_ns(), barrier_timeout_ns=BARRIER_NS_MAX)

    def _record(self) -> None:
        """Mark all records as read and let the shim record the next step."""
        self.set(ring_tail=int(self._words["ring_head"][0]), flags=Flag.RECORD)


class Target:
    """The fuzz target: called with each input, it raises an exception on a failure."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="fuzz-")
        path = Path(self._directory.name) / "shim.sock"
        shim_client.RETRY_SECONDS = shim_client.REFUSED_SECONDS = 0.0
        self._training = Training(path)
        self._training.begin()
        self._losses = [self._training.step() for _ in range(STEPS_MAX)]
        assert len(set(self._losses)) == STEPS_MAX, "some losses are equal"
        self._daemon = Daemon(path)
        self._daemon.map_words(self._training.native.control_fd)
        self._daemon.layout = self._fitting_layout()
        self._reset()
        self._descriptors = open_descriptors()

    def __call__(self, data: bytes) -> None:
        """Run one input."""
        script = Script(data)
        training, daemon = self._training, self._daemon
        daemon.begin(script)
        training.begin()
        turns, losses = 0, []
        while script.left() and turns < TURNS_MAX and len(losses) < STEPS_MAX:
            daemon.act()
            turns += 1
            if script.byte() % 2:
                losses.append(training.step())
                assert training.shim._alive, "a message ended management for good"
        assert losses == self._losses[: len(losses)], f"wrong losses: {losses}"
        self._reset()
        held = open_descriptors()
        assert held == self._descriptors, f"{held - self._descriptors} descriptors are left open"

    def _reset(self) -> None:
        """Terminate the daemon and bring the shim back to its initial state."""
        self._daemon.begin(Script(b""))
        self._daemon.close()
        self._training.native.detach()
        self._training.native.epoch_fd(-1)
        for _ in range(2):
            self._training.step()
            self._daemon.close()
        assert self._training.shim._alive

    def _fitting_layout(self) -> bytes:
        """Make a layout from two identical recorded steps."""
        training, daemon = self._training, self._daemon
        daemon._accept()
        training.begin()
        daemon.set(flags=Flag.RECORD)
        training.step()
        daemon._accept()
        daemon.set(ring_tail=int(daemon._words["ring_head"][0]))
        for _ in range(6):
            training.step()
        records = daemon.records()
        begins = np.flatnonzero(records["event"] == Event.STEP)
        first, second = (records[begins[i] : begins[i + 1]] for i in (-3, -2))
        assert sequence(first) == sequence(second)
        slots, arena_bytes = overlay(first, second)
        count = boundary_count(first)
        return layout_bytes(slots, arena_bytes, count, waits=((count - 1, 1, 1),))
