# SPDX-License-Identifier: Apache-2.0
"""Reads a fuzzer's bytes as a script of numbers and choices. Past the end, all numbers are 0."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

LISTS_MAX = 4
DEPTH_MAX = 3
NESTED_BASE = 745
"""One of the nesting depths is this number plus a random byte (0 to 255). This depth is just below
or just above the interpreter's recursion limit."""


class Script:
    """Reads from the front; no method ever raises an exception."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def left(self) -> bool:
        """Whether bytes remain."""
        return self._at < len(self._data)

    def take(self, count: int) -> bytes:
        """The next `count` bytes, or all remaining bytes if there are fewer."""
        taken = self._data[self._at : self._at + count]
        self._at += len(taken)
        return taken

    def byte(self) -> int:
        """0 to 255."""
        return self.number(1)

    def number(self, size: int) -> int:
        """An unsigned number of `size` bytes."""
        return int.from_bytes(self.take(size), "little")

    def pick(self, choices: Sequence[T]) -> T:
        """The choice that the next byte selects."""
        return choices[self.byte() % len(choices)]

    def json(self, depth: int = 0) -> str:
        """Any JSON as text, including forms that Python's encoder never writes."""
        kinds: list[Callable[[], str]] = [
            lambda: self.pick(("null", "true", "false", "NaN", "-Infinity", "1e999", "-0.0")),
            lambda: str(self.byte() - 128),
            lambda: str(self.number(8)),
            lambda: "9" * self.number(2),
            lambda: json.dumps(self.take(self.byte()).decode("latin-1")),
            lambda: '"' + "\\ud800" * (self.byte() % 4) + "x" * self.number(2) + '"',
            lambda: self._nested(self.pick((10, NESTED_BASE + self.byte(), 100_000))),
        ]
        if depth < DEPTH_MAX:
            kinds += [
                lambda: "[" + ",".join(self._items(depth)) + "]",
                lambda: (
                    "{" + ",".join(f'"{i}":{v}' for i, v in enumerate(self._items(depth))) + "}"
                ),
            ]
        return self.pick(kinds)()

    def _items(self, depth: int) -> list[str]:
        return [self.json(depth + 1) for _ in range(self.byte() % (LISTS_MAX + 1))]

    @staticmethod
    def _nested(depth: int) -> str:
        return "[" * depth + "]" * depth


def framed(body: bytes) -> bytes:
    """The body as a frame of the protocol."""
    return struct.pack("<I", len(body)) + body


def memfd(data: bytes, name: str = "fuzz") -> int:
    """A memfd with the data; the caller closes it."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, data)
    return fd


def open_descriptors() -> int:
    """Number of this process's open descriptors."""
    return len(os.listdir("/proc/self/fd"))
