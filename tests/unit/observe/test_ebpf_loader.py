# SPDX-License-Identifier: Apache-2.0
"""Errors of the loader, and the parsing of the kernel's tables."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.model.kernel_events import MAP_VALUE_BYTES, PROGRAMS, TRACED
from sentineld.observe import bpfmap, ebpf_loader
from sentineld.observe.ebpf import EbpfProbes
from sentineld.observe.ebpf_kernel import MigrateFormat, parse_migrate_format

REPOSITORY = Path(__file__).resolve().parents[3]

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
    assert parsed.syscall_reason == 3


def test_the_programs_define_every_map_and_function_that_the_daemon_uses() -> None:
    text = ebpf_loader.program_text()
    defined = set(re.findall(r"BPF_\w+\((?:\"\w+\", struct \w+, struct \w+, )?(\w+),", text))
    assert defined == {*MAP_VALUE_BYTES, "moving"}  # used only by the programs
    functions = re.findall(r"^int (\w+)\(struct bpf_raw_tracepoint_args", text, re.MULTILINE)
    assert set(functions) == {*PROGRAMS.values(), *(traced.program for traced in TRACED)}
    assert len(functions) == len(set(functions))


def test_missing_programs_are_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ebpf_loader, "BPF_DIRECTORY", tmp_path)
    with pytest.raises(SentinelError, match=f"not installed.*{re.escape(str(tmp_path))}"):
        ebpf_loader.program_text()


def test_missing_headers_are_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BCC_KERNEL_SOURCE", str(tmp_path))
    with pytest.raises(SentinelError, match=re.escape(str(tmp_path))) as caught:
        ebpf_loader.check_kernel_headers()
    assert caught.value.code == "no-kernel-headers"
    (tmp_path / "include/linux").mkdir(parents=True)
    ebpf_loader.check_kernel_headers()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("VERSION = 1", "not the BPF compiler"),
        ("import a_library_that_is_not_there", "cannot be imported"),
    ],
)
def test_a_missing_or_foreign_bcc_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "bcc.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "bcc", raising=False)
    try:
        with pytest.raises(SentinelError, match=message) as caught:
            ebpf_loader.import_bcc()
    finally:
        sys.modules.pop("bcc", None)
    assert caught.value.code == "bcc-missing"
    assert "python3-bpfcc" in caught.value.hint


def _permitted() -> bool:
    try:
        bpfmap.check_permitted()
    except OSError:
        return False
    return True


def test_the_childs_error_reaches_the_caller(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BCC_KERNEL_SOURCE", str(tmp_path))
    probes = EbpfProbes()
    with pytest.raises(SentinelError) as caught:
        probes.start(120)
    assert caught.value.code == ("no-kernel-headers" if _permitted() else "not-permitted")
    assert not probes.loaded
    assert probes.counters()["faults"] == {}
    assert len(probes.drain()) == 0


def test_missing_permission_is_reported() -> None:
    script = (
        "from sentineld.base.errors import SentinelError\n"
        "from sentineld.observe.ebpf import EbpfProbes\n"
        "try: EbpfProbes().start(120)\n"
        "except SentinelError as error: print(error.code, error.hint)\n"
    )
    dropped = "-bpf,-perfmon,-sys_admin"
    privileged = ["setpriv", "--bounding-set", dropped, "--inh-caps", dropped]
    result = subprocess.run(
        [*(privileged if os.geteuid() == 0 else []), sys.executable, "-c", script],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == "not-permitted run with CAP_BPF and CAP_PERFMON\n"


def test_a_child_that_takes_too_long_is_killed() -> None:
    probes = EbpfProbes()
    with pytest.raises(SentinelError, match="not ready in 0 s"):
        probes.start(0)
    with pytest.raises(SentinelError, match="being loaded"):
        probes.fileno()
