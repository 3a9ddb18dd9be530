# SPDX-License-Identifier: Apache-2.0
"""What the eBPF programs must know of the running kernel, found by looking, never by version."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from sentineld.model.kernel_events import TRACED, Traced
from sentineld.observe.btf import Btf

TRACEFS = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))

_SYSCALL = "syscall_or_cpuset"
_FIELDS = {
    "VMA_MM": ("vm_area_struct", "vm_mm"),
    "MM_OWNER": ("mm_struct", "owner"),
    "TASK_TGID": ("task_struct", "tgid"),
    "FOLIO_FLAGS": ("folio", "flags"),
    "FOLIO_MAPPING": ("folio", "mapping"),
    "FOLIO_PAGES": ("folio", "_folio_nr_pages", "_nr_pages"),
    "VM_FAULT_ADDRESS": ("vm_fault", "address"),
}
_CONSTANTS = {
    "PAGE_HEAD_BIT": ("pageflags", "PG_head"),
    "SCAN_SUCCEED": ("scan_result", "SCAN_SUCCEED"),
}


@dataclass(frozen=True)
class Layout:
    """Numbers that the programs are compiled with, and the functions that can be traced.

    functions: id in the kernel's BTF of each traced function that there is. notes: what is not
    told for lack of the others, one line each.
    """

    defines: dict[str, int]
    functions: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def layout_of(btf: Btf | None) -> Layout:
    """What the kernel with this BTF (None: it has none) offers."""
    nothing = dict.fromkeys((*_FIELDS, *_CONSTANTS, "OLD_FOLIO_IN_STRUCT"), 0)
    if btf is None:
        return Layout(nothing, notes=(_untold(TRACED, "the kernel has no readable BTF"),))
    found = {
        **{name: btf.offset(*where) for name, where in _FIELDS.items()},
        **{name: btf.constant(*where) for name, where in _CONSTANTS.items()},
        "OLD_FOLIO_IN_STRUCT": int(btf.offset("rmap_walk_arg", "folio") is not None),
    }
    defines = {name: value for name, value in found.items() if value is not None}
    missing = sorted(found.keys() - defines.keys())
    if missing:
        why = f"the kernel's structures have no {', '.join(missing)}"
        return Layout(nothing, notes=(_untold(TRACED, why),))
    functions: dict[str, int] = {}
    absent: list[Traced] = []
    for traced in TRACED:
        number = btf.function(traced.function)
        if number is None or btf.parameters(traced.function) != traced.parameters:
            absent.append(traced)
        else:
            functions[traced.function] = number
    names = ", ".join(traced.function for traced in absent)
    notes = (_untold(absent, f"the kernel has no {names} as it is known"),) if absent else ()
    return Layout(defines, functions, notes)


def _untold(traced: tuple[Traced, ...] | list[Traced], why: str) -> str:
    return f"{', '.join(one.tells for one in traced)}: not told, as {why}"


@dataclass(frozen=True)
class MigrateFormat:
    """Which arguments of migrate:mm_migrate_pages are mode and reason; their names by number."""

    mode_argument: int = 6
    reason_argument: int = 7
    modes: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def syscall_reason(self) -> int:
        """The number of the reason that move_pages() gives."""
        numbers = (int(number) for number, name in self.reasons.items() if name == _SYSCALL)
        return next(numbers, 3)


def migrate_format() -> str | None:
    """The running kernel's description of migrate:mm_migrate_pages, or None if not readable."""
    for root in TRACEFS:
        try:
            return (root / "events/migrate/mm_migrate_pages/format").read_text()
        except OSError:
            continue
    return None


def parse_migrate_format(text: str) -> MigrateFormat:
    """From a tracepoint's format file: the places of mode and reason, and their names.

    The fields stand in the order of the tracepoint's arguments; kernels before
    6.6 have no large_folio_split among them.
    """
    fields = [name for name in re.findall(r"field:[^;]*?(\w+);", text) if "common_" not in name]
    symbols = re.findall(r"__print_symbolic\(REC->(\w+), (.*?)\)", text)
    names = {
        field: dict(re.findall(r'\{\s*(\d+)\s*,\s*"([^"]*)"\s*\}', table))
        for field, table in symbols
    }
    return MigrateFormat(
        mode_argument=fields.index("mode"),
        reason_argument=fields.index("reason"),
        modes=names.get("mode", {}),
        reasons=names.get("reason", {}),
    )
