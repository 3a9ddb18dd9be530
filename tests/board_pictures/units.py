# SPDX-License-Identifier: Apache-2.0
"""Scales of values, named after Grafana's units."""

from __future__ import annotations

import math

POWERS = {
    "short": (1000, 0, ("", " K", " M", " G", " T")),
    "bytes": (1024, 0, (" B", " KiB", " MiB", " GiB", " TiB")),
    "Bps": (1000, 0, (" B/s", " kB/s", " MB/s", " GB/s", " TB/s")),
    "s": (1000, -2, (" µs", " ms", " s")),
    "joule": (1000, -1, (" mJ", " J", " kJ")),
    "watt": (1000, -1, (" mW", " W", " kW")),
}
"""For each unit: the factor between two scales, the exponent of the smallest scale, and the suffix
of each scale."""


def scale(unit: str, largest: float) -> tuple[float, str]:
    """The divisor and the suffix for values up to `largest`."""
    if unit == "percentunit":
        return 0.01, " %"
    factor, first, suffixes = POWERS[unit]
    power = math.floor(math.log(largest, factor) + 1e-9) if largest > 0 else 0
    power = min(max(power, first), first + len(suffixes) - 1)
    return float(factor) ** power, suffixes[power - first]


def text(unit: str, value: float) -> str:
    """The value with its unit, rounded to three digits or to an integer."""
    divisor, suffix = scale(unit, abs(value))
    scaled = value / divisor
    return f"{scaled:.0f}{suffix}" if abs(scaled) >= 100 else f"{scaled:.3g}{suffix}"
