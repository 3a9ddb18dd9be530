# SPDX-License-Identifier: Apache-2.0
"""Checks of the requirements of eBPF, on a made-up root folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sentineld.doctor import tracing
from sentineld.doctor.findings import Status, System
from tests.unit.doctor.rootfolder import RELEASE
from tests.unit.files import write


def test_headers(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BCC_KERNEL_SOURCE", raising=False)
    required = replace(system, ebpf="required")
    found = tracing.headers(required)
    assert (found.status, found.code) == (Status.FAIL, "no-kernel-headers")
    assert tracing.headers(replace(system, ebpf="auto")).status is Status.WARN
    assert tracing.headers(replace(system, ebpf="off")).status is Status.SKIP
    (system.root / f"lib/modules/{RELEASE}/build/include").mkdir(parents=True)
    assert tracing.headers(system).status is Status.OK
    monkeypatch.setenv("BCC_KERNEL_SOURCE", "/opt/headers")
    assert tracing.headers(required).status is Status.FAIL


def test_a_package_that_is_only_named_bcc(
    system: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "other/bcc.py", "")
    monkeypatch.syspath_prepend(tmp_path / "other")
    monkeypatch.delitem(__import__("sys").modules, "bcc", raising=False)
    found = tracing.bcc(replace(system, ebpf="required"))
    assert (found.status, found.code) == (Status.FAIL, "bcc-missing")
    assert "python3-bpfcc" in found.fix
    assert tracing.bcc(system).status is Status.WARN


def test_capabilities_of_a_container(system: System) -> None:
    assert tracing.capabilities(system).status is Status.SKIP
    write(system.root, "proc/self/status", "Name:\tx\nCapBnd:\t000001ffffffffff\n")
    assert tracing.capabilities(system).status is Status.OK
    write(system.root, "proc/self/status", "Name:\tx\nCapBnd:\t00000000a80425fb\n")
    found = tracing.capabilities(system)
    assert (found.status, found.code) == (Status.FAIL, "not-permitted")
    assert "CAP_SYS_PTRACE, CAP_PERFMON, CAP_BPF" in found.cause


def test_btf_and_perf(system: System) -> None:
    assert tracing.btf(system).status is Status.WARN
    write(system.root, "sys/kernel/btf/vmlinux", "")
    assert tracing.btf(system).status is Status.OK
    assert tracing.perf_paranoid(system).status is Status.SKIP
    write(system.root, "proc/sys/kernel/perf_event_paranoid", "3\n")
    assert "raw tracepoints" in tracing.perf_paranoid(system).cause
