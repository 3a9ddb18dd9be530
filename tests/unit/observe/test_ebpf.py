# SPDX-License-Identifier: Apache-2.0
"""EbpfProbes reports an error if its programs cannot be loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.observe import bpfmap
from sentineld.observe.ebpf import EbpfProbes
from tests.unit.descriptors import open_descriptors

REPOSITORY = Path(__file__).resolve().parents[3]


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


def test_unusable_maps_are_reported_and_closed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loader = tmp_path / "loader"
    message = {
        "maps": ["faults", "watched", "drops"],
        "programs": ["page_access"],
        "ring_bytes": 4096,
        "modes": {},
        "reasons": {},
        "notes": [],
    }
    loader.write_text(
        f"#!{sys.executable}\n"
        "import json, os, socket\n"
        "fds = [os.open(os.devnull, os.O_RDONLY) for _ in range(4)]\n"
        f"socket.send_fds(socket.socket(fileno=0), [json.dumps({message!r}).encode()], fds)\n"
    )
    loader.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(loader))
    before = open_descriptors()
    probes = EbpfProbes()
    with pytest.raises(SentinelError, match="the eBPF map watched cannot be used") as caught:
        probes.start(120)
    assert caught.value.hint == "restart sentineld; reinstall it if the error remains"
    assert not probes.loaded
    assert open_descriptors() <= before
