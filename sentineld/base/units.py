# SPDX-License-Identifier: Apache-2.0
"""Parses and formats sizes and fast budgets."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sentineld.base.errors import SentinelError

BYTES_MAX = 1 << 63
_UNITS = {
    "": 1,
    "B": 1,
    "KIB": 1 << 10,
    "K": 1 << 10,
    "MIB": 1 << 20,
    "M": 1 << 20,
    "GIB": 1 << 30,
    "G": 1 << 30,
    "TIB": 1 << 40,
    "T": 1 << 40,
}


def parse_bytes(text: str) -> int:
    """Parse "48MiB", "1.5G" or "4096"; returns bytes. Raises SentinelError("usage")."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].upper() not in _UNITS:
        raise SentinelError("usage", f"{text!r} is not a size", "write it like 48MiB, 2G or 4096")
    count = float(match[1]) * _UNITS[match[2].upper()]
    if count >= BYTES_MAX:
        raise SentinelError("usage", f"{text[:40]!r} is too large", "give less than 8388608 TiB")
    return int(count)


def format_bytes(count: float) -> str:
    """A size as text, such as "48.0 MiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


@dataclass(frozen=True)
class FastBudget:
    """A session's fast memory: a fraction of its peak, or a number of bytes."""

    fraction: float | None  # fraction of the peak, 0..1; None: the budget is in `bytes`
    bytes: int | None

    @classmethod
    def parse(cls, text: str) -> FastBudget:
        """Parse "20%", "0.2" (a number up to 1 is a fraction) or a size such as "48MiB".

        Raises SentinelError("usage").
        """
        stripped = text.strip()
        if re.fullmatch(r"0?\.\d+|1(\.0*)?", stripped):
            stripped = f"{100 * float(stripped)}%"
        if stripped.endswith("%"):
            try:
                fraction = float(stripped[:-1]) / 100
            except ValueError:
                fraction = -1.0
            if not 0 < fraction <= 1:
                raise SentinelError(
                    "usage",
                    f"{text!r} is not a share of the peak",
                    "write it like 20%, at most 100%",
                )
            return cls(fraction, None)
        count = parse_bytes(stripped)
        if count <= 0:
            raise SentinelError("usage", "the budget is 0 bytes", "give a share like 20% or a size")
        return cls(None, count)

    def resolve(self, peak_bytes: int) -> int:
        """The budget in bytes for a session with this peak."""
        if self.bytes is not None:
            return self.bytes
        assert self.fraction is not None
        return int(self.fraction * peak_bytes)

    def __str__(self) -> str:
        return f"{self.fraction * 100:g}%" if self.fraction is not None else str(self.bytes)
