# SPDX-License-Identifier: Apache-2.0
"""The Python copies of the module's structures and constants agree with kmod/sentinel_uapi.h."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from sentineld.model import records
from sentineld.observe import uapi

HEADER = Path(__file__).parents[3] / "kmod/sentinel_uapi.h"


STRUCTURES: dict[str, type[ctypes.Structure]] = {
    "sentinel_info": uapi.Info,
    "sentinel_attach": uapi.Attach,
    "sentinel_range": uapi.Range,
    "sentinel_epoch": uapi.Epoch,
    "sentinel_stats": uapi.Stats,
    "sentinel_epoch_fd": uapi.EpochFd,
    "sentinel_log": uapi.Log,
}


NUMBERS = {
    "SENTINEL_UAPI_VERSION": uapi.VERSION,
    "SENTINEL_FEATURE_SKIP": uapi.FEATURE_SKIP,
    "SENTINEL_FEATURE_BIRTHS": uapi.FEATURE_BIRTHS,
    "SENTINEL_FEATURE_UNKNOWN": uapi.FEATURE_UNKNOWN,
    "SENTINEL_FEATURE_PRECISE_WRITE": uapi.FEATURE_PRECISE_WRITE,
    "SENTINEL_FEATURE_REARM": uapi.FEATURE_REARM,
    "SENTINEL_FEATURE_AGE": uapi.FEATURE_AGE,
    "SENTINEL_FEATURE_HUGE": uapi.FEATURE_HUGE,
    "SENTINEL_ATTACH_PRECISE_WRITE": uapi.ATTACH_PRECISE_WRITE,
    "SENTINEL_REARM_US_MIN": uapi.REARM_US_MIN,
    "SENTINEL_REARM_US_MAX": uapi.REARM_US_MAX,
    "SENTINEL_EPOCH_RESIDENCY": uapi.EPOCH_RESIDENCY,
    "SENTINEL_LOG_OFFSET": uapi.LOG_OFFSET,
    "SENTINEL_ACCESS_WRITE": records.ACCESS_WRITE,
    "SENTINEL_ACCESS_BIRTH": records.ACCESS_BIRTH,
    "SENTINEL_ACCESS_UNKNOWN": records.ACCESS_UNKNOWN,
    "SENTINEL_ACCESS_AGAIN": records.ACCESS_AGAIN,
    "SENTINEL_ACCESS_AGED": records.ACCESS_AGED,
    "SENTINEL_ACCESS_RESIDENCY": records.ACCESS_RESIDENCY,
    "SENTINEL_IOC_INFO": uapi.IOC_INFO,
    "SENTINEL_IOC_ATTACH": uapi.IOC_ATTACH,
    "SENTINEL_IOC_ADD_RANGE": uapi.IOC_ADD_RANGE,
    "SENTINEL_IOC_REMOVE_RANGE": uapi.IOC_REMOVE_RANGE,
    "SENTINEL_IOC_ARM": uapi.IOC_ARM,
    "SENTINEL_IOC_DISARM": uapi.IOC_DISARM,
    "SENTINEL_IOC_EPOCH": uapi.IOC_EPOCH,
    "SENTINEL_IOC_EPOCH_FD": uapi.IOC_EPOCH_FD,
    "SENTINEL_IOC_STATS": uapi.IOC_STATS,
    "SENTINEL_IOC_AGE": uapi.IOC_AGE,
}


def expected() -> dict[str, int]:
    found = dict(NUMBERS)
    for name, structure in STRUCTURES.items():
        found[f"sizeof {name}"] = ctypes.sizeof(structure)
        for field, *_ in structure._fields_:
            found[f"{name}.{field}"] = getattr(structure, field).offset
    found["sizeof sentinel_access"] = records.SAMPLE_DTYPE.itemsize
    for field in records.SAMPLE_DTYPE.names or ():
        offset = records.SAMPLE_DTYPE.fields
        assert offset is not None
        found[f"sentinel_access.{field}"] = int(offset[field][1])
    return found


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """The values that a C compiler gives to the names of expected()."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.fail("a C compiler is needed: apt install gcc libc6-dev")
    lines = []
    for name in expected():
        if name.startswith("sizeof "):
            value = f"sizeof(struct {name.removeprefix('sizeof ')})"
        elif "." in name:
            value = "offsetof(struct {}, {})".format(*name.split("."))
        else:
            value = name
        lines.append(f'printf("%s=%llu\\n", "{name}", (unsigned long long)({value}));')
    folder = tmp_path_factory.mktemp("uapi")
    (folder / "print.c").write_text(
        f'#include <stdio.h>\n#include <stddef.h>\n#include "{HEADER}"\n'
        "int main(void) {\n" + "\n".join(lines) + "\nreturn 0; }\n"
    )
    subprocess.run([compiler, "-o", folder / "print", folder / "print.c"], check=True)
    output = subprocess.run([folder / "print"], check=True, capture_output=True, text=True).stdout
    return {name: int(value) for name, value in (line.split("=") for line in output.splitlines())}


def test_every_number_equals_the_header_s(compiled: dict[str, int]) -> None:
    assert compiled == expected()


def test_all_structures_and_ioctls_of_the_header_are_defined() -> None:
    text = HEADER.read_text()
    structures = set(re.findall(r"^struct (\w+) \{", text, re.MULTILINE))
    assert structures == {*STRUCTURES, "sentinel_access"}
    ioctls = set(re.findall(r"^#define (SENTINEL_IOC_\w+) _IO", text, re.MULTILINE))
    assert ioctls == {name for name in NUMBERS if name.startswith("SENTINEL_IOC_")}
