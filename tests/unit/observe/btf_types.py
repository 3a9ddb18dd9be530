# SPDX-License-Identifier: Apache-2.0
"""BTF data built according to Documentation/bpf/btf.rst."""

from __future__ import annotations

import struct

from sentineld.model.kernel_events import TRACED

INT, POINTER, STRUCT, UNION, ENUM, TYPEDEF, CONST, FUNC, PROTO = 1, 2, 4, 5, 6, 8, 10, 12, 13


class Writer:
    """Builds BTF type by type. The methods that add a type return its id."""

    def __init__(self) -> None:
        self._types: list[bytes] = []
        self._strings = b"\0"

    def name(self, text: str) -> int:
        if not text:
            return 0
        self._strings += text.encode() + b"\0"
        return len(self._strings) - len(text) - 1

    def add(self, kind: int, name: str, members: int, size: int, *words: int) -> int:
        info = kind << 24 | members
        self._types.append(struct.pack(f"<{3 + len(words)}I", self.name(name), info, size, *words))
        return len(self._types)

    def integer(self) -> int:
        return self.add(INT, "int", 0, 4, 32)

    def record(self, kind: int, name: str, *fields: tuple[str, int, int]) -> int:
        words = [
            word
            for text, type_id, offset in fields
            for word in (self.name(text), type_id, offset * 8)
        ]
        return self.add(kind, name, len(fields), 64, *words)

    def function(self, name: str, *parameters: str) -> int:
        words = [word for text in parameters for word in (self.name(text), 1)]
        prototype = self.add(PROTO, "", len(parameters), 1, *words)
        return self.add(FUNC, name, 0, prototype)

    def enumeration(self, name: str, **constants: int) -> int:
        words = [word for text, value in constants.items() for word in (self.name(text), value)]
        return self.add(ENUM, name, len(constants), 4, *words)

    def data(self) -> bytes:
        types = b"".join(self._types)
        header = struct.pack(
            "<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(self._strings)
        )
        return header + types + self._strings


def kernel() -> Writer:
    """The types that the eBPF programs need, nested as in the kernel."""
    writer = Writer()
    number = writer.integer()
    writer.record(STRUCT, "vm_area_struct", ("vm_start", number, 0), ("vm_mm", number, 16))
    inner = writer.record(STRUCT, "", ("pgd", number, 72), ("owner", number, 928))
    writer.record(STRUCT, "mm_struct", ("", inner, 8))
    writer.record(STRUCT, "task_struct", ("tgid", number, 2436))
    page = writer.record(STRUCT, "", ("flags", number, 0), ("mapping", number, 24))
    sizes = writer.record(STRUCT, "", ("_folio_nr_pages", number, 32))
    first, second = (
        writer.record(UNION, "", ("", page, 0)),
        writer.record(UNION, "", ("", sizes, 0)),
    )
    writer.record(STRUCT, "folio", ("", first, 0), ("", second, 64))
    fields = writer.record(STRUCT, "", ("vma", number, 0), ("address", number, 24))
    writer.record(STRUCT, "vm_fault", ("", writer.add(CONST, "", 0, fields), 0))
    writer.enumeration("pageflags", PG_locked=0, PG_head=6)
    writer.enumeration("scan_result", SCAN_FAIL=0, SCAN_SUCCEED=1)
    return writer


def with_functions(writer: Writer) -> Writer:
    for traced in TRACED:
        writer.function(traced.function, *(f"p{n}" for n in range(traced.parameters)))
    return writer
