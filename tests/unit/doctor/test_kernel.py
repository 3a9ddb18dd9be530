# SPDX-License-Identifier: Apache-2.0
"""Checks of the kernel and its module, on a made-up root folder."""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Callable

import pytest

from sentineld.doctor import kernel
from sentineld.doctor.findings import Status, System
from tests.unit.doctor.rootfolder import RELEASE
from tests.unit.files import write


def test_a_supported_kernel(system: System) -> None:
    found = kernel.kernel(system)
    assert (found.status, found.cause) == (Status.OK, f"{RELEASE} on x86_64")


@pytest.mark.parametrize(
    ("path", "text", "status", "said"),
    [
        ("proc/sys/kernel/osrelease", "5.10.0-8-amd64", Status.FAIL, "too old"),
        ("proc/sys/kernel/arch", "aarch64", Status.WARN, "x86_64 only"),
        ("sys/kernel/realtime", "1", Status.WARN, "PREEMPT_RT"),
    ],
)
def test_kernels_without_the_daemon_or_the_module(
    system: System, path: str, text: str, status: Status, said: str
) -> None:
    write(system.root, path, text)
    found = kernel.kernel(system)
    assert found.status is status
    assert said in found.cause
    assert found.fix


def test_module_not_built_not_loaded_loaded(system: System) -> None:
    found = kernel.module(system)
    assert found.status is Status.WARN
    assert f"linux-headers-{RELEASE}" in found.fix
    write(system.root, f"lib/modules/{RELEASE}/updates/dkms/sentinel.ko.xz", lzma.compress(b"ko"))
    assert kernel.module(system).fix == "modprobe sentinel"
    write(system.root, "proc/modules", "sentinel_other 1 0\nsentinel 53248 1 - Live 0x0\n")
    assert kernel.module(system).status is Status.OK


@pytest.mark.parametrize(
    ("suffix", "compress"), [("", bytes), (".xz", lzma.compress), (".gz", gzip.compress)]
)
def test_lockdown_refuses_an_unsigned_module_only(
    system: System, suffix: str, compress: Callable[[bytes], bytes]
) -> None:
    write(system.root, "sys/kernel/security/lockdown", "none [integrity] confidentiality\n")
    file = f"lib/modules/{RELEASE}/updates/dkms/sentinel.ko{suffix}"
    write(system.root, file, compress(b"ko"))
    assert "mokutil" in kernel.module(system).fix
    write(system.root, file, compress(b"ko" + b"~Module signature appended~\n"))
    assert kernel.module(system).fix == "modprobe sentinel"


def test_a_module_that_cannot_be_decompressed_is_not_called_unsigned(system: System) -> None:
    write(system.root, "sys/kernel/security/lockdown", "none [integrity] confidentiality\n")
    write(system.root, f"lib/modules/{RELEASE}/updates/dkms/sentinel.ko.zst", b"(zstd)")
    assert kernel.module(system).fix == "modprobe sentinel"


def test_device(system: System) -> None:
    assert kernel.device(system).status is Status.SKIP
    write(system.root, "dev/sentinel", "")
    assert kernel.device(system).status is Status.OK


def test_ftrace_switched_off(system: System) -> None:
    assert kernel.ftrace(system).status is Status.OK
    write(system.root, "proc/sys/kernel/ftrace_enabled", "0\n")
    assert kernel.ftrace(system).fix == "sysctl kernel.ftrace_enabled=1"
