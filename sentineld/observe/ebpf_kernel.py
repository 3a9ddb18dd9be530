# SPDX-License-Identifier: Apache-2.0
"""Properties of the running kernel that the eBPF programs need. They are probed, not derived from
the kernel's version number."""

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
    """Field offsets and functions of one kernel."""

    defines: dict[str, int]  # preprocessor macros for the programs, by name
    functions: dict[str, int] = field(default_factory=dict)  # BTF type ids by function name
    notes: tuple[str, ...] = ()  # events that can't be observed, and why


def layout_of(btf: Btf | None) -> Layout:
    """Field offsets and functions of the kernel with this BTF. btf: None if the kernel has no
    readable BTF."""
    nothing = dict.fromkeys((*_FIELDS, *_CONSTANTS, "OLD_FOLIO_IN_STRUCT"), 0)
    if btf is None:
        return Layout(nothing, notes=(_not_observed(TRACED, "the kernel has no readable BTF"),))
    found = {
        **{name: btf.offset(*where) for name, where in _FIELDS.items()},
        **{name: btf.constant(*where) for name, where in _CONSTANTS.items()},
        "OLD_FOLIO_IN_STRUCT": int(btf.offset("rmap_walk_arg", "folio") is not None),
    }
    defines = {name: value for name, value in found.items() if value is not None}
    missing = sorted(found.keys() - defines.keys())
    if missing:
        why = f"the kernel's structures have no {', '.join(missing)}"
        return Layout(nothing, notes=(_not_observed(TRACED, why),))
    functions: dict[str, int] = {}
    absent: list[Traced] = []
    for traced in TRACED:
        number = btf.function(traced.function)
        if number is None or btf.parameters(traced.function) != traced.parameters:
            absent.append(traced)
        else:
            functions[traced.function] = number
    names = ", ".join(traced.function for traced in absent)
    why = f"the kernel has no {names} with the expected parameters"
    notes = (_not_observed(absent, why),) if absent else ()
    return Layout(defines, functions, notes)


def _not_observed(traced: tuple[Traced, ...] | list[Traced], why: str) -> str:
    return f"not observed: {', '.join(one.observes for one in traced)}: {why}"


@dataclass(frozen=True)
class MigrateFormat:
    """The arguments of the tracepoint migrate:mm_migrate_pages."""

    mode_argument: int = 6  # index of the argument `mode`
    reason_argument: int = 7  # index of the argument `reason`
    modes: dict[str, str] = field(default_factory=dict)  # decimal number of a mode -> its name
    reasons: dict[str, str] = field(default_factory=dict)  # decimal number of a reason -> its name

    @property
    def syscall_reason(self) -> int:
        """The kernel's number for the migration reason of move_pages(); 3 if the names of reasons
        are unknown."""
        numbers = (int(number) for number, name in self.reasons.items() if name == _SYSCALL)
        return next(numbers, 3)


def migrate_format() -> str | None:
    """The format file of migrate:mm_migrate_pages, or None if it is not readable."""
    for root in TRACEFS:
        try:
            return (root / "events/migrate/mm_migrate_pages/format").read_text()
        except OSError:
            continue
    return None


def parse_migrate_format(text: str) -> MigrateFormat | None:
    """Parse the tracepoint's format file. Returns None if the field
    `mode` or the field `reason` is missing.

    The file lists the fields in the order of the arguments. The number of fields
    varies: older kernels, 6.1 among them, lack large_folio_split.
    """
    fields = [name for name in re.findall(r"field:[^;]*?(\w+);", text) if "common_" not in name]
    if not {"mode", "reason"} <= set(fields):
        return None
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
