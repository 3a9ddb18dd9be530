# SPDX-License-Identifier: Apache-2.0
"""The maps and functions of the eBPF programs, and errors of their loader."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.model.kernel_events import MAP_VALUE_BYTES, PROGRAMS, TRACED
from sentineld.observe import ebpf_loader

REPOSITORY = Path(__file__).resolve().parents[3]


def test_the_programs_define_every_map_and_function_that_the_daemon_uses() -> None:
    text = ebpf_loader.program_text()
    defined = set(re.findall(r"BPF_\w+\((?:\"\w+\", struct \w+, struct \w+, )?(\w+),", text))
    assert defined == {*MAP_VALUE_BYTES, "moving"}  # the daemon does not use "moving"
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
