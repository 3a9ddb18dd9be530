# SPDX-License-Identifier: Apache-2.0
"""Errors of EbpfProbes if its programs cannot be loaded, and its use of the maps, which are fake.

tests/vm/test_ebpf.py loads the real programs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from sentineld.base.errors import SentinelError
from sentineld.model.kernel_events import DISTURBANCE_KEY_DTYPE, DROP_DTYPE, DROPS
from sentineld.observe import bpfmap, ebpf
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


def fake_loader(folder: Path, maps: list[str], programs: list[str]) -> str:
    """A program that sends descriptors of /dev/null for maps and programs with these names; returns
    its path."""
    loader = folder / "loader"
    message = {
        "maps": maps,
        "programs": programs,
        "ring_bytes": 4096,
        "modes": {},
        "reasons": {},
        "notes": [],
    }
    loader.write_text(
        f"#!{sys.executable}\n"
        "import json, os, socket\n"
        f"count = {len(maps) + len(programs)}\n"
        "fds = [os.open(os.devnull, os.O_RDONLY) for _ in range(count)]\n"
        f"socket.send_fds(socket.socket(fileno=0), [json.dumps({message!r}).encode()], fds)\n"
    )
    loader.chmod(0o755)
    return str(loader)


def test_unusable_maps_are_reported_and_closed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loader = fake_loader(tmp_path, ["faults", "watched", "drops"], ["page_access"])
    monkeypatch.setattr(sys, "executable", loader)
    before = open_descriptors()
    probes = EbpfProbes()
    with pytest.raises(SentinelError, match="the eBPF map watched cannot be used") as caught:
        probes.start(120)
    assert caught.value.hint == "restart sentineld; reinstall it if the error remains"
    assert not probes.loaded
    assert open_descriptors() <= before


class FakeMap:
    """A map in this process; the last one that was made for disturbances is in `disturbances`."""

    disturbances: FakeMap

    def __init__(self, fd: int, key: npt.DTypeLike, value: npt.DTypeLike) -> None:
        self._fd = fd
        self._value = np.dtype(value)
        self.keys = np.zeros(len(DROPS) if value is DROP_DTYPE else 0, key)
        if key is DISTURBANCE_KEY_DTYPE:
            FakeMap.disturbances = self

    def update(self, key: int, value: np.ndarray) -> None:
        """Only watched processes and numbers are updated; their values are not read."""

    def delete(self, key: Any) -> None:
        self.keys = self.keys[self.keys != key]

    def lookup(self, key: int) -> None:
        """Nothing is counted."""

    def items(self) -> tuple[np.ndarray, np.ndarray]:
        return self.keys, np.zeros(len(self.keys), self._value)

    def close(self) -> None:
        os.close(self._fd)


def test_a_disturbance_that_is_counted_too_late_does_not_count_for_a_later_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    maps = ["watched", "migrations", "migrations_by", "drops", "disturbances", "recorded"]
    loader = fake_loader(tmp_path, ["faults", *maps, "recorded_number"], [])
    monkeypatch.setattr(sys, "executable", loader)
    monkeypatch.setattr(ebpf, "BpfMap", FakeMap)
    probes = EbpfProbes()
    probes.start(120)

    def disturb(*pids: int) -> None:
        """The kernel's programs count one disturbance of each of these processes."""
        rows = np.zeros(len(pids), DISTURBANCE_KEY_DTYPE)
        rows["owner"] = pids
        FakeMap.disturbances.keys = np.concatenate([FakeMap.disturbances.keys, rows])

    def counts() -> dict[int, int]:
        return {pid: len(found) for pid, found in probes.counters()["disturbances"].items()}

    for pid in (7, 8, 9):
        probes.watch(pid)
    disturb(7, 8, 9)
    probes.unwatch(7)
    probes.unwatch(9)
    disturb(7, 9)  # by programs that had found the processes before unwatch()
    probes.watch(7)
    assert counts() == {7: 0, 8: 1}
    assert FakeMap.disturbances.keys["owner"].tolist() == [8]
    disturb(7)
    assert counts() == {7: 1, 8: 1}
    probes.close()
