# SPDX-License-Identifier: Apache-2.0
"""Each check on a fake root folder: the good case and every problem that it detects."""

from __future__ import annotations

import json
import lzma
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from sentineld.base.errors import EXIT_STATUS
from sentineld.cli.doctor import doctor
from sentineld.cli.output import Daemon
from sentineld.doctor import kernel, memory, service, tracing
from sentineld.doctor.checks import CHECKS, examine, first_failure
from sentineld.doctor.findings import Finding, Status, System

RELEASE = "6.12.117+deb13-amd64"


@pytest.fixture
def system(tmp_path: Path) -> System:
    write(tmp_path, "proc/sys/kernel/osrelease", RELEASE)
    write(tmp_path, "proc/sys/kernel/arch", "x86_64")
    return System(tmp_path, tmp_path / "control.sock")


def write(root: Path, path: str, text: str | bytes) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text.encode() if isinstance(text, str) else text)


def test_a_supported_kernel_is_ok(system: System) -> None:
    found = kernel.kernel(system)
    assert (found.status, found.cause) == (Status.OK, f"{RELEASE} on x86_64")


@pytest.mark.parametrize(
    ("path", "text", "status", "cause"),
    [
        ("proc/sys/kernel/osrelease", "5.10.0-8-amd64", Status.FAIL, "too old"),
        ("proc/sys/kernel/arch", "aarch64", Status.WARN, "x86_64 only"),
        ("sys/kernel/realtime", "1", Status.WARN, "PREEMPT_RT"),
    ],
)
def test_unsupported_kernels_are_reported(
    system: System, path: str, text: str, status: Status, cause: str
) -> None:
    write(system.root, path, text)
    found = kernel.kernel(system)
    assert found.status is status
    assert cause in found.cause
    assert found.fix


def test_the_module_check_tells_unbuilt_unloaded_and_loaded_apart(system: System) -> None:
    found = kernel.module(system)
    assert found.status is Status.WARN
    assert f"linux-headers-{RELEASE}" in found.fix
    write(system.root, f"lib/modules/{RELEASE}/updates/dkms/sentinel.ko.xz", lzma.compress(b"ko"))
    assert kernel.module(system).fix == "modprobe sentinel"
    write(system.root, "proc/modules", "sentinel_other 1 0\nsentinel 53248 1 - Live 0x0\n")
    assert kernel.module(system).status is Status.OK


def test_lockdown_matters_for_an_unsigned_module_only(system: System) -> None:
    write(system.root, "sys/kernel/security/lockdown", "none [integrity] confidentiality\n")
    file = f"lib/modules/{RELEASE}/updates/dkms/sentinel.ko.xz"
    write(system.root, file, lzma.compress(b"ko"))
    assert "mokutil" in kernel.module(system).fix
    write(system.root, file, lzma.compress(b"ko" + b"~Module signature appended~\n"))
    assert kernel.module(system).fix == "modprobe sentinel"


def test_the_device_check_is_skipped_without_the_device(system: System) -> None:
    assert kernel.device(system).status is Status.SKIP
    write(system.root, "dev/sentinel", "")
    assert kernel.device(system).status is Status.OK


def test_disabled_ftrace_is_reported(system: System) -> None:
    assert kernel.ftrace(system).status is Status.OK
    write(system.root, "proc/sys/kernel/ftrace_enabled", "0\n")
    assert kernel.ftrace(system).fix == "sysctl kernel.ftrace_enabled=1"


def test_missing_kernel_headers_are_reported(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BCC_KERNEL_SOURCE", raising=False)
    found = tracing.headers(system)
    assert (found.status, found.code) == (Status.FAIL, "no-kernel-headers")
    (system.root / f"lib/modules/{RELEASE}/build/include").mkdir(parents=True)
    assert tracing.headers(system).status is Status.OK
    monkeypatch.setenv("BCC_KERNEL_SOURCE", "/opt/headers")
    assert tracing.headers(system).status is Status.FAIL


def test_an_unrelated_package_named_bcc_is_detected(
    system: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "other/bcc.py", "")
    monkeypatch.syspath_prepend(tmp_path / "other")
    monkeypatch.delitem(__import__("sys").modules, "bcc", raising=False)
    found = tracing.bcc(system)
    assert (found.status, found.code) == (Status.FAIL, "bcc-missing")
    assert "python3-bpfcc" in found.fix


def test_capabilities_missing_in_a_container_are_listed(system: System) -> None:
    assert tracing.capabilities(system).status is Status.SKIP
    write(system.root, "proc/self/status", "Name:\tx\nCapBnd:\t000001ffffffffff\n")
    assert tracing.capabilities(system).status is Status.OK
    write(system.root, "proc/self/status", "Name:\tx\nCapBnd:\t00000000a80425fb\n")
    found = tracing.capabilities(system)
    assert (found.status, found.code) == (Status.FAIL, "not-permitted")
    assert "CAP_SYS_PTRACE, CAP_PERFMON, CAP_BPF" in found.cause


def test_missing_btf_and_strict_perf_event_paranoid_are_reported(system: System) -> None:
    assert tracing.btf(system).status is Status.WARN
    write(system.root, "sys/kernel/btf/vmlinux", "")
    assert tracing.btf(system).status is Status.OK
    assert tracing.perf_paranoid(system).status is Status.SKIP
    write(system.root, "proc/sys/kernel/perf_event_paranoid", "3\n")
    assert "raw tracepoints" in tracing.perf_paranoid(system).cause


def test_a_single_node_fails_without_emulated_tiers(system: System) -> None:
    write(system.root, "sys/devices/system/node/has_memory", "0\n")
    found = memory.tiers(system)
    assert (found.status, found.code) == (Status.FAIL, "no-second-tier")
    assert "--tiers emulated:cxl" in found.fix
    found = memory.tiers(replace(system, tiers={"emulated": "optane"}))
    assert found.status is Status.OK
    assert "emulated (preset optane)" in found.cause


@pytest.mark.parametrize(
    ("check", "path", "good", "bad", "fix"),
    [
        ("numa_balancing", "proc/sys/kernel/numa_balancing", "0", "2", "numa_balancing=0"),
        ("demotion", "sys/kernel/mm/numa/demotion_enabled", "false", "true", "echo false"),
        ("max_map_count", "proc/sys/vm/max_map_count", "65530", "1000", "max_map_count=65530"),
        ("swap", "proc/swaps", "Filename Type", "Filename Type\n/dev/vdb partition", "swapoff"),
    ],
)
def test_kernel_settings_that_interfere_are_warned_about(
    system: System, check: str, path: str, good: str, bad: str, fix: str
) -> None:
    write(system.root, path, good)
    assert getattr(memory, check)(system).status is Status.OK
    write(system.root, path, bad)
    found = getattr(memory, check)(system)
    assert found.status is Status.WARN
    assert fix in found.fix


def test_the_huge_page_mode_is_reported(system: System) -> None:
    file = "sys/kernel/mm/transparent_hugepage/enabled"
    write(system.root, file, "[always] madvise never\n")
    assert memory.huge_pages(system).cause.startswith("always;")
    assert memory.huge_pages(system).cause.endswith("except where a plan uses huge pages")
    write(system.root, file, "always madvise [never]\n")
    assert memory.huge_pages(system).cause == "never; tensor memory uses small pages"


def test_free_page_reporting_to_a_hypervisor_is_reported(system: System) -> None:
    assert memory.free_memory(system).status is Status.OK
    features = "sys/bus/virtio/drivers/virtio_balloon/virtio0/features"
    fraction = "proc/sys/vm/percpu_pagelist_high_fraction"
    write(system.root, fraction, "0\n")
    write(system.root, features, "01100" + 123 * "0" + "\n")
    assert memory.free_memory(system).status is Status.OK
    write(system.root, features, "011001" + 122 * "0" + "\n")
    found = memory.free_memory(system)
    assert found.status is Status.WARN
    assert found.fix == "sysctl vm.percpu_pagelist_high_fraction=8"
    write(system.root, fraction, "8\n")
    assert memory.free_memory(system).status is Status.OK


def test_an_unreachable_daemon_is_a_failure(system: System) -> None:
    found = service.daemon(system)
    assert (found.status, found.code) == (Status.FAIL, "daemon-unreachable")


def test_a_daemon_that_hangs_up_is_a_failure(system: System) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(system.socket))
        assert service.daemon(system).status is Status.FAIL


def test_a_missing_shim_library_is_a_failure(
    system: System, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SENTINELD_SHIM_LIBRARY", str(tmp_path / "libx.so"))
    assert service.shim_library(system).status is Status.FAIL
    write(tmp_path, "libx.so", "")
    assert service.shim_library(system).status is Status.OK


def test_check_names_are_distinct_and_problems_have_a_fix(system: System) -> None:
    findings = examine(system)
    assert len({found.check for found in findings}) == len(CHECKS)
    for found in findings:
        assert found.code in EXIT_STATUS
        assert found.status in (Status.OK, Status.SKIP) or found.fix, found


def test_the_first_failure_sets_the_exit_status() -> None:
    findings = [
        Finding("a", Status.WARN, "", code="bcc-missing"),
        Finding("b", Status.FAIL, "", code="no-second-tier"),
        Finding("c", Status.FAIL, "", code="bcc-missing"),
    ]
    assert first_failure(findings) is findings[1]
    assert first_failure(findings[:1]) is None


def test_the_command_prints_a_line_or_a_json_object_per_check(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "none.sock")
    text = CliRunner().invoke(doctor, [], obj=daemon)
    assert len(text.output.splitlines()) == len(CHECKS)
    result = CliRunner().invoke(doctor, ["--json"], obj=daemon)
    answer = json.loads(result.output)
    failing = [check for check in answer["checks"] if check["status"] == "fail"]
    # No daemon answers at that socket, so at least this check fails.
    assert failing[-1]["check"] == "daemon"
    assert result.exit_code == text.exit_code == EXIT_STATUS[failing[0]["code"]]
