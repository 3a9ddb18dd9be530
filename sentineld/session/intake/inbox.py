# SPDX-License-Identifier: Apache-2.0
"""Messages from a session's shim: names of layers, the number of threads, placed tensors, answers
to layouts, operators' accesses, descriptors by which the daemon can watch the process's writes, and
notes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from sentineld.base.errors import SentinelError
from sentineld.base.text import text_of
from sentineld.control.frames import FrameError, Message
from sentineld.model.protocol import Placement
from sentineld.model.records import OpAccesses, TensorName
from sentineld.observe.shim_link import OP_ACCESSES_MAX, ShimLink
from sentineld.session.intake.sampling import Observing
from sentineld.session.intake.step_feed import require_plausible

log = logging.getLogger(__name__)

NOTE_CHARACTERS_MAX = 500
LAYERS_MAX = 1 << 16
"""The layer field of a ring record has 16 bits."""
LAYER_CHARACTERS_MAX = 256
LAYER_NAMES_CHARACTERS_MAX = 1 << 18
"""Limit on the total length of the names of all layers of a process, because a session keeps the
names in memory."""
TENSOR_NAMES_CHARACTERS_MAX = 1 << 21
"""Limit on the total length of the names of a process's tensors, as for layers. NAME_CHARACTERS are
added to the length of each name, for the objects that hold the name."""
NAME_CHARACTERS = 64
THREADS_MAX = 1 << 16
PLACED_MAX = 1 << 16
"""Limit on the number of placed tensors of a process. The shim reports at most 50,000."""
LOGGED_MAX = 50
"""Maximum number of log lines that one process can cause by its notes and by invalid messages."""


class Inbox:
    """Handles messages in the session's thread. The messages' content is untrusted."""

    def __init__(self, link: ShimLink, observing: Observing) -> None:
        self.layers: tuple[str, ...] = ()
        self.threads = _threads_of(link.hello)
        """Number of torch's compute threads; 0: not reported."""
        self.placed: Mapping[int, int] | None = None
        """The script's placements of tensors that outlive a step: protocol.Placement by address;
        None: not reported. Each message replaces the mapping."""
        self.names: Mapping[int, TensorName] = {}
        """The framework's names of persistent tensors by address, as last reported."""
        self.layout_id = 0
        self.layout_live = False
        self._cuts_id = 0
        self._lines_left = LOGGED_MAX
        self._link = link
        self._observing = observing

    def expect_layout(self, layout_id: int) -> None:
        """Record that a layout was sent: layout_live is false until the process has taken this
        layout."""
        self.layout_id, self.layout_live = layout_id, False

    def expect_cuts(self, layout_id: int) -> None:
        """Record that a layout that only adds cuts was sent. Its answer matters only if the process
        refuses it: no step would ever have the cuts."""
        self._cuts_id = layout_id

    def forget_layouts(self) -> None:
        """Ignore later answers to the layouts that were sent before, except for the residency map:
        the process is told to leave its layout."""
        self.expect_layout(0)
        self._cuts_id = 0

    def take(self, message: Message) -> OpAccesses | None:
        """Handle a message; returns the operators' accesses if the message has any.

        Raises SentinelError if the process refuses its layout or reports impossible accesses, or
        OSError if the daemon lacks descriptors.
        """
        kind = message.get("type")
        if kind == "layers":
            names = message.get("names")
            if isinstance(names, list):
                self.layers = _layers_of(names)
        elif kind == "threads":
            self.threads = _threads_of(message)
        elif kind == "placed":
            self.placed = _placed_of(message.get("tensors"))
        elif kind == "layout":
            # The answer to any layout, even a former one, may carry a residency map.
            self._link.take_residency(message)
            answered = message.get("layout_id")
            if not answered or answered not in (self.layout_id, self._cuts_id):
                return None
            if message.get("ok") is not True:
                error = text_of(message.get("error", "no reason given"), NOTE_CHARACTERS_MAX)
                raise SentinelError("failed", f"the process refused the layout: {error}")
            if answered == self.layout_id:
                self.layout_live = True
        elif kind == "accesses":
            return self._accesses(message)
        elif kind == "writes":
            self._observing.take(message)
        elif kind == "note":
            text = text_of(message.get("text"), NOTE_CHARACTERS_MAX)
            self._log(logging.INFO, f"says: {text}")
        return None

    def _accesses(self, message: Message) -> OpAccesses | None:
        try:
            accesses = self._link.take_accesses(message)
        except FrameError as error:
            self._log(logging.WARNING, f"sent operators' accesses that can't be used: {error}")
            return None
        if accesses.refused:
            self._log(
                logging.WARNING,
                f"reports {accesses.refused} accesses of operators in a step; they are not used,"
                f" because they are more than {OP_ACCESSES_MAX}",
            )
        require_plausible(accesses.rows)
        self.names = _kept_names(accesses.names)
        return accesses

    def _log(self, level: int, text: str) -> None:
        if not self._lines_left:
            return
        self._lines_left -= 1
        log.log(level, "process %d %s", self._link.pid, text)
        if not self._lines_left:
            log.warning("further lines about messages of process %d are left out", self._link.pid)


def _kept_names(names: Mapping[int, TensorName]) -> dict[int, TensorName]:
    """The names of persistent tensors, up to TENSOR_NAMES_CHARACTERS_MAX.

    Each step has new gradients, at other addresses, so the names of gradients are not kept.
    """
    left, found = TENSOR_NAMES_CHARACTERS_MAX, {}
    for address, named in names.items():
        if named.role == "gradient":
            continue
        left -= len(named.role) + len(named.name) + NAME_CHARACTERS
        if left < 0:
            break
        found[address] = named
    return found


def _layers_of(names: list[Any]) -> tuple[str, ...]:
    """The names of layers by their ids. Text beyond LAYER_NAMES_CHARACTERS_MAX characters in total
    is cut off, so the last names can be empty."""
    left, found = LAYER_NAMES_CHARACTERS_MAX, []
    for name in names[:LAYERS_MAX]:
        text = text_of(name, min(LAYER_CHARACTERS_MAX, left))
        left -= len(text)
        found.append(text)
    return tuple(found)


def _placed_of(rows: object) -> dict[int, int]:
    """Placements by address; skips malformed rows."""
    if not isinstance(rows, list):
        return {}
    return {
        row[0]: row[1]
        for row in rows[:PLACED_MAX]
        if isinstance(row, list)
        and len(row) == 2
        and all(type(value) is int for value in row)
        and row[1] in (Placement.FAST, Placement.SLOW)
    }


def _threads_of(message: Message) -> int:
    threads = message.get("threads")
    return threads if type(threads) is int and 0 < threads <= THREADS_MAX else 0
