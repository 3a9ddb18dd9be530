# SPDX-License-Identifier: Apache-2.0
"""Connects the shim's C library, the hooks and the daemon; runs at the end of each step."""

from __future__ import annotations

import errno
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from sentineld.base.text import json_end, text_of
from sentineld.model import job
from sentineld.shim.binding import bound_nodes
from sentineld.shim.client import FAST_VARIABLE, BrokenPeerError, Client, Message
from sentineld.shim.native import SHIM_VERSION, Native, PagingSettings, ShimUnavailableError
from sentineld.shim.placed_rows import PlacedRows
from sentineld.shim.say import say
from sentineld.shim.selftest import STEP_OFFSET, AllocatorCheck

if TYPE_CHECKING:
    from sentineld.shim.hooks import Layers
    from sentineld.shim.names import Names, Row
    from sentineld.shim.op_accesses import AccessStep
    from sentineld.shim.script_profiler import ScriptProfiler

LAYOUT_ID_OFFSET = 0xD0  # in struct sentinel_control
REASON_CHARACTERS_MAX = 200
LAYERS_BYTES_MAX = 4 << 20
"""Limit on the size of all layers' names in JSON. The daemon accepts messages up to 5 MiB."""

ACCESS_STEPS_MAX = 10
"""Maximum number of interrupted access steps for one request of the daemon. Each takes longer than
a plain step, and in some trainings, such as one with a profiler of its own in each step, all are
interrupted."""

FORKED_ACCESS_STEPS_MAX = 3
"""An access step ends early if the process forks. This is the maximum number of such access steps
for one request of the daemon. The next access step continues in spite of forks, so that a training
that forks in each step can be profiled, too; the children then inherit the profiler."""

SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors after which the shim connects to the daemon again, because they may pass: for example, the
process has too many open files."""

WELCOME_S = 5.0
"""Maximum time to wait for the daemon at the start of a process that has FAST_VARIABLE set."""


def _threads() -> int:
    """Number of torch's compute threads; a script may change the number at any time."""
    import torch

    return int(torch.get_num_threads())


class Shim:
    """Applies the daemon's messages between steps and answers them."""

    def __init__(
        self,
        native: Native,
        client: Client,
        layers: Layers,
        tensors: Names,
        script_profiler: ScriptProfiler,
        torch_version: str,
    ) -> None:
        self._native = native
        self._client = client
        self._layers = layers
        self._tensors = tensors
        self._script_profiler = script_profiler
        self._torch_version = torch_version
        self._session = ""
        self._layers_sent = 0
        self._threads_sent = 0
        self._placed = PlacedRows(native)
        self._access_step: AccessStep | None = None
        self._access_requested = False
        self._access_steps_left = 0
        self._forked_access_steps = 0
        self._postponements_noted: set[str] = set()
        self._allocator = AllocatorCheck(native)
        self._refusal_printed = False
        self._alive = True
        self._ending = threading.RLock()
        self._welcomed = False
        os.register_at_fork(after_in_child=self._after_fork)
        try:
            self._connect()
            if FAST_VARIABLE in os.environ:
                self._await_welcome()
        except OSError as error:
            if error.errno not in SHORTAGES:
                raise
            self._disconnect()

    @property
    def alive(self) -> bool:
        """Whether the process can be managed: the shim has not given up, and this is not a forked
        child."""
        return self._alive

    def _after_fork(self) -> None:
        """In a forked child: drop the connection, which belongs to the parent."""
        self._alive = False
        # Another thread of the parent may have held the old lock at the fork.
        self._ending = threading.RLock()
        self._client.close()
        self._enable_layers()

    def step_ended(self) -> None:
        """End the step, exchange messages with the daemon, begin the next step. Raises nothing
        except an interrupt (Ctrl+C)."""
        # Another training thread may end a step of its own at the same time.
        with self._ending:
            self._step_ended()

    def _step_ended(self) -> None:
        if not self._alive:
            self._enable_layers()
            return
        native = self._native
        native.step_end()
        try:
            self._between_steps()
        except ShimUnavailableError as reason:
            self._give_up(str(reason))
        except Exception as error:
            if isinstance(error, OSError) and error.errno in SHORTAGES:
                self._disconnect()
            else:
                self._give_up(f"{type(error).__name__}: {error}")
        except BaseException:
            self._disconnect()  # after an interrupt (Ctrl+C), the script may go on
            raise
        self._enable_layers()
        native.step_begin()

    def _disconnect(self) -> None:
        """Close the connection, if any; _connect() opens another one later. After an exception, the
        old one is useless: a message may have been sent only in part, and the descriptors of a lost
        message could be taken for those of a later one."""
        self._client.close()
        self._native.connected(False)

    def _enable_layers(self) -> None:
        """Enable the hooks of the layers if they are needed: by the daemon, by a layout, or to end
        an access step's profiler that still runs in its own thread."""
        used = self._client.connected or self._native.word(LAYOUT_ID_OFFSET) != 0
        profiled = self._script_profiler.give_way is not None
        self._layers.enabled = (self._alive and used) or profiled

    def _give_up(self, reason: str) -> None:
        """Stop managing the process. Call this between two steps."""
        self._alive = False
        self._disconnect()
        self._native.detach()  # without a daemon, no other layout would ever replace this one
        say(f"unmanaged from here on: {reason}")

    def _between_steps(self) -> None:
        finished = self._end_access_step()
        self._allocator.step_ended()
        client = self._client
        if client.connected:
            client.flush()
            for message in client.receive():
                self._handle(message)
        self._native.connected(client.connected)
        self._connect()
        known = len(self._layers.names)
        if client.connected and known > 1 and known != self._layers_sent:
            self._layers_sent = known
            bytes_max = LAYERS_BYTES_MAX // known - len('"", ')
            names = [json_end(name, bytes_max) for name in self._layers.names]
            client.send({"type": "layers", "names": names})
        if client.connected and (threads := _threads()) != self._threads_sent:
            self._threads_sent = threads
            client.send({"type": "threads", "threads": threads})
        if client.connected and self._placed.changed():
            client.send({"type": "placed", "tensors": self._placed.rows})
        # Do not begin an access step right after another one. torch wraps optimizer.step() in a
        # profiler range (record_function), which began under the profiler that has just stopped. If
        # a new profiler were active at the range's end, torch would write to the old profiler's
        # freed events.
        if self._access_requested and not finished:
            self._begin_access_step()

    def _connect(self) -> None:
        if not self._client.connect():
            return
        self._layers_sent = 0
        self._access_requested = False
        self._threads_sent = _threads()
        self._placed = PlacedRows(self._native)
        self._native.connected(True)
        residency, fds = self._residency()
        own = job.of_environment(os.environ)
        self._client.send(
            {
                "type": "hello",
                "version": SHIM_VERSION,
                "pid": os.getpid(),
                "torch": self._torch_version,
                "page_bytes": os.sysconf("SC_PAGE_SIZE"),
                "threads": self._threads_sent,
                "bound_nodes": bound_nodes(),
                "layout_id": self._native.word(LAYOUT_ID_OFFSET),
                "session": self._session,
                "fast": os.environ.get(FAST_VARIABLE),
                "job": own.message() if own else None,
                **residency,
            },
            (self._native.control_fd, self._native.event_fd, *fds),
        )

    def _await_welcome(self) -> None:
        """Wait for the daemon's first message, which starts the pager on paged tiers. A model that
        is larger than memory needs the pager before its first step."""
        deadline_s = time.monotonic() + WELCOME_S
        while self._client.connected and not self._welcomed:
            if (left_s := deadline_s - time.monotonic()) <= 0:
                break
            self._client.wait(left_s)
            for message in self._client.receive():
                self._handle(message)

    def _residency(self) -> tuple[Message, tuple[int, ...]]:
        """Message fields and descriptors for the residency map; empty if there is no such map."""
        fd = self._native.residency_fd
        return ({"residency": True}, (fd,)) if fd >= 0 else ({}, ())

    def _handle(self, message: Message) -> None:
        kind = message["type"]
        try:
            if kind == "welcome":
                self._welcomed = True
                self._session = str(message.get("session", ""))
                if problem := self._start_paging(message):
                    self.note(f"the pager does not start: {problem}")
            elif kind == "epoch_fd":
                self._native.epoch_fd(self._client.take_descriptor())
            elif kind == "epoch_fd_close":
                self._native.epoch_fd(-1)
            elif kind == "layout":
                self._apply_layout(message)
            elif kind == "watch_writes":
                from sentineld.shim.writes import offer_writes

                offer_writes(self._native, self._client)
            elif kind == "profile_ops":
                self._access_requested = True
                self._access_steps_left = ACCESS_STEPS_MAX
                self._forked_access_steps = 0
            elif kind == "detach":
                self._access_requested = False
                self._native.detach()
            elif kind == "refused":
                self._refused(message)
            else:
                raise BrokenPeerError(f"unknown message type: {kind}")
        except BrokenPeerError:
            self._client.close()

    def _refused(self, message: Message) -> None:
        self._client.back_off()
        if not self._refusal_printed:
            self._refusal_printed = True
            reason = text_of(message.get("error", "refused"), REASON_CHARACTERS_MAX)
            say(f"running unmanaged: {reason}")

    def _apply_layout(self, message: Message) -> None:
        descriptor = self._client.take_descriptor()
        try:
            problem = self._start_paging(message) or self._native.layout(descriptor)
        finally:
            os.close(descriptor)
        layout_id = message.get("layout_id")
        residency, fds = self._residency()
        answer = {
            "type": "layout",
            # If layout_id is not an integer, answer with None: it may be a list that is nested too
            # deeply for json.dumps().
            "layout_id": layout_id if type(layout_id) is int else None,
            "ok": not problem,
            "error": problem,
        }
        self._client.send(answer | residency, fds)

    def _start_paging(self, message: Message) -> str:
        """Apply the message's paging settings, if any: start the pager, or give it new settings.
        Returns "" or the problem."""
        paging = message.get("paging")
        if not isinstance(paging, dict):
            return ""
        file = self._client.take_descriptor() if paging.get("file") is True else -1
        try:
            wake = self._client.take_descriptor()
        except BrokenPeerError:
            if file >= 0:
                os.close(file)
            raise
        file_bytes, most, budget = (
            value if type(value := paging.get(name)) is int else 0
            for name in ("file_bytes", "file_bytes_max", "budget_pages")
        )
        return self._native.paging(PagingSettings(file, file_bytes, most, wake, budget))

    def _begin_access_step(self) -> None:
        from sentineld.shim.op_accesses import AccessStep
        from sentineld.shim.script_profiler import OWN_PROFILER

        if self._script_profiler.active:
            self._postpone_access_step(OWN_PROFILER)
            return
        self._access_requested = False
        self._access_steps_left -= 1
        try:
            through_forks = self._forked_access_steps >= FORKED_ACCESS_STEPS_MAX
            self._access_step = AccessStep(self._native, self._script_profiler, through_forks)
        except Exception as error:
            self.note(f"this torch's profiler does not start: {error}")
        else:
            self._layers.before_forward = self._access_step.before_forward

    def _postpone_access_step(self, reason: str) -> None:
        """Request another access step, while attempts are left. Report each reason only once."""
        from sentineld.shim.script_profiler import FORK

        if reason == FORK:
            self._forked_access_steps += 1
        self._access_requested = self._access_steps_left > 0
        if reason not in self._postponements_noted:
            self._postponements_noted.add(reason)
            self.note(reason)

    def _end_access_step(self) -> bool:
        """End the access step, if any. Returns whether an access step's profiler ran in this step.

        If a thread other than the profiler's has ended the step, the profiler runs on until its
        thread enters a layer, forks or ends a step.
        """
        access_step, self._access_step = self._access_step, None
        give_way = self._script_profiler.give_way
        if access_step is not None:
            self._finish_access_step(access_step)
        elif give_way is not None:
            give_way("")  # the access step is interrupted already
        if self._script_profiler.give_way is None:
            self._layers.before_forward = None
        return access_step is not None or give_way is not None

    def _finish_access_step(self, access_step: AccessStep) -> None:
        try:
            rows = access_step.finish()
        except Exception as error:
            self.note(f"this torch's profiler reports no accesses: {type(error).__name__}: {error}")
            return
        if rows is None:
            self._postpone_access_step(access_step.interrupted)
            return
        descriptor = os.memfd_create("sentinel-accesses", os.MFD_CLOEXEC)
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(rows.tobytes())
            step = self._native.word(STEP_OFFSET)
            message: dict[str, Any] = {
                "type": "accesses",
                "count": len(rows),
                "step": step,
                "names": self._tensor_names(),
            }
            self._client.send(message, (descriptor,))
        finally:
            os.close(descriptor)

    def _tensor_names(self) -> list[Row]:
        try:
            return self._tensors.rows()
        except Exception as error:
            self.note(f"cannot read the names of the tensors: {type(error).__name__}: {error}")
            return []

    def note(self, text: str) -> None:
        """Print the text and send it to the daemon."""
        say(text)
        self._client.send({"type": "note", "text": text})
