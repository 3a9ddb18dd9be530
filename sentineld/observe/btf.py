# SPDX-License-Identifier: Apache-2.0
"""Reader of the kernel's type information (BTF): field offsets, functions, enum constants.

The format is described in Documentation/bpf/btf.rst. The eBPF programs need only a few field
offsets. Because BTF gives these offsets, the programs do not include the kernel's memory-management
headers. Otherwise, most of the compile time would be spent on these headers.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

VMLINUX = Path("/sys/kernel/btf/vmlinux")

_MAGIC = 0xEB9F
_HEADER = struct.Struct("<HBBIIIII")
_STRUCT, _UNION, _ENUM, _CONST, _VOLATILE, _TYPEDEF, _FUNC = 4, 5, 6, 10, 9, 8, 12
_TRANSPARENT = (_CONST, _VOLATILE, _TYPEDEF)

# For each kind of type, the number of words that follow the three common words: in _FIXED the
# words per type, in _EACH the words per member.
_FIXED = {1: 1, 3: 3, 14: 1, 17: 1}
_EACH = {4: 3, 5: 3, 6: 2, 13: 2, 15: 3, 19: 3}


class Btf:
    """The types of one kernel. Raises ValueError if the data is not valid BTF."""

    def __init__(self, data: bytes) -> None:
        try:
            magic, _, _, header, types, types_bytes, strings, strings_bytes = _HEADER.unpack_from(
                data
            )
        except struct.error as error:
            raise ValueError(f"not BTF: {error}") from None
        begin, self._strings = header + types, header + strings
        if magic != _MAGIC or begin + types_bytes > len(data) or types_bytes % 4:
            raise ValueError("not BTF of this machine's byte order")
        self._data = data
        self._strings_end = self._strings + strings_bytes
        self._words = np.frombuffer(data, "<u4", types_bytes // 4, begin)
        self._at = self._positions()
        kinds = self._words[self._at + 1] >> 24 & 31
        self._ids = {kind: np.flatnonzero(kinds == kind) + 1 for kind in (_STRUCT, _ENUM, _FUNC)}

    @classmethod
    def of_kernel(cls) -> Btf | None:
        """The BTF of the running kernel; None if there is none or it can't be read."""
        try:
            return cls(VMLINUX.read_bytes())
        except (OSError, ValueError):
            return None

    def function(self, name: str) -> int | None:
        """The type id of a kernel function; None if there is no function of this name."""
        return self._named(_FUNC, name)

    def parameters(self, function: str) -> int:
        """The number of a function's parameters; -1 if there is no such function."""
        found = self.function(function)
        if found is None:
            return -1
        return self._type(self._type(found)[2])[1]

    def offset(self, structure: str, *names: str) -> int | None:
        """Byte offset of a field of a structure; None if there is no such structure or field.

        names: the field's names in different kernels; the first one that the structure has is used.

        Fields of an anonymous structure or union inside the structure count as fields of the
        structure.
        """
        found = self._named(_STRUCT, structure)
        if found is None:
            return None
        offsets = (self._offset(found, name) for name in names)
        return next((offset for offset in offsets if offset is not None), None)

    def constant(self, enumeration: str, name: str) -> int | None:
        """The value of a constant of an enumeration; None if there is no such constant."""
        found = self._named(_ENUM, enumeration)
        if found is None:
            return None
        at, count = self._at[found - 1] + 3, self._type(found)[1]
        for entry in self._words[at : at + 2 * count].reshape(-1, 2).tolist():
            if self._text(entry[0]) == name:
                return int(entry[1])
        return None

    def _positions(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Index of each type's first word.

        BTF has no index and its types differ in length, so this loop has to visit all types:
        about 100,000 in a kernel.
        """
        words = memoryview(self._words.tobytes()).cast("I")
        end, at, positions = len(words), 0, []
        fixed = [3 + _FIXED.get(kind, 0) for kind in range(32)]
        each = [_EACH.get(kind, 0) for kind in range(32)]
        while at + 3 <= end:
            positions.append(at)
            info = words[at + 1]
            kind = info >> 24 & 31
            at += fixed[kind] + each[kind] * (info & 0xFFFF)
        if at != end:
            raise ValueError("BTF whose last type is truncated")
        return np.array(positions, np.int64)

    def _named(self, kind: int, name: str) -> int | None:
        """The id of the first type of this kind and name."""
        wanted = b"\0" + name.encode() + b"\0"
        string = self._data.find(wanted, self._strings, self._strings_end)
        if string < 0:
            return None
        ids = self._ids[kind]
        names = self._words[self._at[ids - 1]]
        found = ids[names == string + 1 - self._strings]
        return int(found[0]) if len(found) else None

    def _type(self, number: int) -> tuple[int, int, int]:
        """A type's kind, its number of members, and its size or the id of the type it refers to."""
        at = self._at[number - 1]
        info = int(self._words[at + 1])
        return info >> 24 & 31, info & 0xFFFF, int(self._words[at + 2])

    def _offset(self, number: int, name: str) -> int | None:
        kind, count, inner = self._type(number)
        if kind in _TRANSPARENT:
            return self._offset(inner, name)
        if kind not in (_STRUCT, _UNION):
            return None
        at = self._at[number - 1] + 3
        for text, member, bits in self._words[at : at + 3 * count].reshape(-1, 3).tolist():
            begin = (bits & 0xFFFFFF) // 8
            if self._text(text) == name:
                return int(begin)
            if text == 0 and member and (found := self._offset(member, name)) is not None:
                return int(begin) + found
        return None

    def _text(self, offset: int) -> str:
        begin = self._strings + offset
        return self._data[begin : self._data.index(b"\0", begin)].decode(errors="replace")
