# SPDX-License-Identifier: Apache-2.0
"""Writes marks into blocks of memory and checks them."""

from __future__ import annotations

import ctypes
import struct

PAGE = 4096


def stamp(address: int, size: int, mark: int) -> None:
    for place in (address, address + (size - 1) // 8 * 8 - 8 if size >= 16 else address):
        ctypes.memmove(place, struct.pack("<Q", mark), 8)


def stamped(address: int, size: int, mark: int) -> bool:
    last = address + (size - 1) // 8 * 8 - 8 if size >= 16 else address
    return all(ctypes.string_at(p, 8) == struct.pack("<Q", mark) for p in (address, last))


def pages(size: int) -> int:
    return -(-size // PAGE)
