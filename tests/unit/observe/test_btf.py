# SPDX-License-Identifier: Apache-2.0
"""The BTF reader, on data built according to Documentation/bpf/btf.rst."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from sentineld.model.kernel_events import TRACED
from sentineld.observe.btf import VMLINUX, Btf
from sentineld.observe.ebpf_kernel import layout_of

INT, POINTER, STRUCT, UNION, ENUM, TYPEDEF, CONST, FUNC, PROTO = 1, 2, 4, 5, 6, 8, 10, 12, 13


class Writer:
    """Builds BTF type by type; each returns the new type's id."""

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
    """The types that the programs need, nested as in the kernel."""
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


def test_fields_of_anonymous_structures_are_found() -> None:
    btf = Btf(kernel().data())
    assert btf.offset("mm_struct", "owner") == 936
    assert btf.offset("folio", "_nr_pages", "_folio_nr_pages") == 96
    assert btf.offset("vm_fault", "address") == 24
    assert btf.offset("folio", "_nr_pages") is None
    assert btf.offset("rmap_walk_arg", "folio") is None


def test_functions_and_constants_are_found_by_name() -> None:
    writer = kernel()
    number = writer.function("do_swap_page", "vmf")
    btf = Btf(writer.data())
    assert btf.function("do_swap_page") == number
    assert btf.parameters("do_swap_page") == 1
    assert btf.parameters("do_swap") == -1
    assert btf.constant("pageflags", "PG_head") == 6
    assert btf.constant("pageflags", "PG_tail") is None


def test_a_kernel_with_all_types_gets_all_programs() -> None:
    layout = layout_of(Btf(with_functions(kernel()).data()))
    assert layout.notes == ()
    assert set(layout.functions) == {traced.function for traced in TRACED}
    assert layout.defines["MM_OWNER"] == 936
    assert layout.defines["OLD_FOLIO_IN_STRUCT"] == 0


def test_a_newer_kernel_s_wrapped_argument_is_recognized() -> None:
    writer = with_functions(kernel())
    writer.record(STRUCT, "rmap_walk_arg", ("folio", 1, 0))
    assert layout_of(Btf(writer.data())).defines["OLD_FOLIO_IN_STRUCT"] == 1


def test_missing_functions_are_noted() -> None:
    writer = kernel()
    for traced in TRACED[1:]:
        extra = 1 if traced.function == "try_to_unmap_one" else 0
        writer.function(traced.function, *(f"p{n}" for n in range(traced.parameters + extra)))
    layout = layout_of(Btf(writer.data()))
    assert layout.notes == (
        "not observed: NUMA hint faults, page reclaim: the kernel has no mpol_misplaced, "
        "try_to_unmap_one with the expected parameters",
    )
    assert set(layout.functions) == {traced.function for traced in TRACED[1:-1]}


def test_without_type_information_nothing_is_traced() -> None:
    for layout in (layout_of(None), layout_of(Btf(Writer().data()))):
        assert layout.functions == {}
        assert not any(layout.defines.values())
        assert len(layout.notes) == 1
        assert all(traced.observes in layout.notes[0] for traced in TRACED)


@pytest.mark.parametrize(
    "data", [b"", b"\x9f\xeb", b"ELF" * 20, kernel().data()[:100], b"\x9f\xeb" + b"\xff" * 22]
)
def test_invalid_data_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="BTF"):
        Btf(data)


@pytest.mark.skipif(not VMLINUX.exists(), reason="this kernel has no BTF")
def test_the_running_kernel_s_btf_is_read() -> None:
    btf = Btf(Path(VMLINUX).read_bytes())
    assert btf.offset("list_head", "prev") == 8
    assert btf.parameters("handle_mm_fault") == 4
