# SPDX-License-Identifier: Apache-2.0
"""kernel_events.py agrees with the structures and enums of bpf/. A C program prints the sizes,
offsets and values in bpf/."""

from __future__ import annotations

import re
from pathlib import Path

from sentineld.model.kernel_events import (
    DEEDS,
    DISTURBANCE_DTYPE,
    DISTURBANCE_KEY_DTYPE,
    DROPS,
    FAULT_DTYPE,
    FAULT_KINDS,
    MIGRATION_DTYPE,
    MIGRATION_KEY_DTYPE,
    NO_NODE,
    WATCH_DTYPE,
)
from tests.unit.model.headers import c_values

BPF = Path(__file__).parents[3] / "bpf"

STRUCTS = {
    "fault": FAULT_DTYPE,
    "watch": WATCH_DTYPE,
    "migration": MIGRATION_DTYPE,
    "migration_key": MIGRATION_KEY_DTYPE,
    "disturbance": DISTURBANCE_DTYPE,
    "disturbance_key": DISTURBANCE_KEY_DTYPE,
}


def declarations() -> str:
    """The structures, enums and numbers of bpf/, without programs and maps, which only bcc can
    compile."""
    text = "\n".join(path.read_text() for path in sorted(BPF.iterdir()))
    enums = re.findall(r"^enum \w+ \{.*?^\};", text, re.DOTALL | re.MULTILINE)
    structs = re.findall(r"^struct \w+ \{.*?^\};", text, re.DOTALL | re.MULTILINE)
    numbers = re.findall(r"^#define (?:DEED_\w+|NO_NODE) .*", text, re.MULTILINE)
    types = [
        f"typedef unsigned {name} u{bits};"
        for name, bits in (("char", 8), ("short", 16), ("int", 32), ("long", 64))
    ]
    return "\n".join([*types, *numbers, *enums, *structs])


def test_every_structure_and_number_equals_the_programs(tmp_path: Path) -> None:
    (tmp_path / "declarations.h").write_text(declarations())
    wanted = {}
    for name, dtype in STRUCTS.items():
        wanted[f"sizeof(struct {name})"] = dtype.itemsize
        for field, (kind, offset) in dtype.fields.items():  # type: ignore[union-attr]
            wanted[f"offsetof(struct {name}, {field})"] = offset
            wanted[f"sizeof(((struct {name} *)0)->{field})"] = kind.itemsize
    for index, fault in enumerate(FAULT_KINDS):
        wanted[f"FAULT_{fault.upper()}"] = index
    for number, deed in DEEDS.items():
        wanted[f"DEED_{deed.upper()}"] = number
    wanted |= {"FAULT_KINDS": len(FAULT_KINDS), "DROPS": len(DROPS), "NO_NODE": NO_NODE}
    assert c_values(list(wanted), ['"declarations.h"'], tmp_path) == wanted
