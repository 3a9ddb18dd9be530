# SPDX-License-Identifier: Apache-2.0
"""Properties of a kernel: tracepoint formats, and structures from its BTF."""

from __future__ import annotations

import re

import pytest

from sentineld.model.kernel_events import TRACED
from sentineld.observe.btf import Btf
from sentineld.observe.ebpf_kernel import MigrateFormat, layout_of, parse_migrate_format
from tests.unit.observe.btf_types import STRUCT, Writer, kernel, with_functions

FORMAT_6_1 = """name: mm_migrate_pages
ID: 511
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:unsigned long succeeded;\toffset:8;\tsize:8;\tsigned:0;
\tfield:unsigned long failed;\toffset:16;\tsize:8;\tsigned:0;
\tfield:unsigned long thp_succeeded;\toffset:24;\tsize:8;\tsigned:0;
\tfield:unsigned long thp_failed;\toffset:32;\tsize:8;\tsigned:0;
\tfield:unsigned long thp_split;\toffset:40;\tsize:8;\tsigned:0;
\tfield:enum migrate_mode mode;\toffset:48;\tsize:4;\tsigned:0;
\tfield:int reason;\toffset:52;\tsize:4;\tsigned:1;

print fmt: "nr_succeeded=%lu mode=%s reason=%s", REC->succeeded, \
__print_symbolic(REC->mode, { 0, "MIGRATE_ASYNC" }, { 3, "MIGRATE_SYNC_NO_COPY" }), \
__print_symbolic(REC->reason, { 0, "compaction" }, { 3, "syscall_or_cpuset" })
"""


FORMAT_6_12 = FORMAT_6_1.replace(
    "\tfield:enum",
    "\tfield:unsigned long large_folio_split;\toffset:48;\tsize:8;\tsigned:0;\n\tfield:enum",
).replace("{ ", "{")


@pytest.mark.parametrize(("text", "first"), [(FORMAT_6_1, 5), (FORMAT_6_12, 6)])
def test_arguments_of_migrate_pages_are_found_by_name(text: str, first: int) -> None:
    parsed = parse_migrate_format(text)
    assert parsed == MigrateFormat(
        mode_argument=first,
        reason_argument=first + 1,
        modes={"0": "MIGRATE_ASYNC", "3": "MIGRATE_SYNC_NO_COPY"},
        reasons={"0": "compaction", "3": "syscall_or_cpuset"},
    )
    assert parsed is not None
    assert parsed.syscall_reason == 3


@pytest.mark.parametrize("field", ["mode", "reason"])
def test_a_format_without_a_field_has_no_arguments(field: str) -> None:
    text = re.sub(rf"\tfield:[^;]*\b{field};.*\n", "", FORMAT_6_12)
    assert text != FORMAT_6_12
    assert parse_migrate_format(text) is None


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
