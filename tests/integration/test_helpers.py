# SPDX-License-Identifier: Apache-2.0
"""The helpers of the tests leave nothing behind if a test fails, and skip no test needlessly."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sentineld.observe.pidfd import children
from tests import cgroups
from tests import swap_area as swap
from tests.integration import hot_cold, test_daemon, test_emulated
from tests.integration.hot_cold import MIB
from tests.integration.test_daemon import Daemon
from tests.integration.test_emulated import ManagedRun
from tests.required import VARIABLE, unless_required
from tests.swap_area import ZRAM, swap_area
from tests.unit.shim import paged


@pytest.fixture(autouse=True)
def _no_child_is_left() -> Iterator[None]:
    before = children(os.getpid())
    yield
    assert set(children(os.getpid())) <= set(before)


class StandIn:
    """Takes the place of a daemon. Never has a session."""

    def __init__(self, folder: Path, *options: str, config: str = "") -> None:
        self.folder = folder
        self.process = subprocess.Popen(["/bin/sleep", "1000"])

    def __enter__(self) -> StandIn:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def session(self, pid: int) -> dict[str, Any] | None:
        return None

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def test_a_daemon_that_does_not_answer_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(test_daemon, "PATIENCE_S", 0.1)
    with pytest.raises(AssertionError, match="the daemon did not answer"):
        Daemon(tmp_path, wrapper=("/bin/sh", "-c", "exec sleep 1000"))


def test_a_training_without_a_session_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def give_up(done: Callable[[], Any]) -> Any:
        assert done(), "timed out"

    monkeypatch.setattr(test_emulated, "wait", give_up)
    monkeypatch.setattr(test_emulated, "Daemon", StandIn)
    script = tmp_path / "sleeps.py"
    script.write_text("import time\ntime.sleep(1000)\n")
    with pytest.raises(AssertionError, match="timed out"):
        ManagedRun(tmp_path, "any", script=script)


def test_a_failure_beside_swap_stops_the_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hot_cold, "Daemon", StandIn)
    monkeypatch.setattr(hot_cold, "swap_area", lambda *_: os.scandir(tmp_path))
    with pytest.raises(ZeroDivisionError), hot_cold.daemon_with_swap("file", tmp_path):
        raise ZeroDivisionError


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can add a zram device")
def test_a_zram_device_of_an_impossible_size_is_removed(tmp_path: Path) -> None:
    def devices() -> list[str]:
        return sorted(path.name for path in Path("/sys/block").glob("zram*"))

    if not ZRAM.is_dir():
        pytest.skip("this kernel has no zram")
    before = devices()
    with pytest.raises(OSError, match="Invalid argument"), swap_area("zram", tmp_path, 0):
        pass
    assert devices() == before


@pytest.fixture
def hierarchies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes folders take the place of the hierarchies of cgroups. The folder for v2 gives child
    cgroups no controllers."""

    def mount(*versions: str) -> None:
        own, mounts = tmp_path / "self", ""
        for version in versions:
            kind, controllers = ("cgroup", "memory") if version == "v1" else ("cgroup2", "")
            (tmp_path / version).mkdir()
            mounts += f"30 1 0:26 / {tmp_path / version} rw - {kind} {kind} rw,{controllers}\n"
        own.mkdir()
        (own / "mountinfo").write_text(mounts)
        (own / "cgroup").write_text("4:memory:/\n0::/\n")
        monkeypatch.setattr(cgroups, "PROC", tmp_path)

    return mount


@pytest.mark.parametrize(
    ("mounted", "controller", "found"),
    [
        (["v1", "v2"], "", "v2"),
        (["v1", "v2"], "memory", "v1"),
        (["v2"], "", "v2"),
        (["v1"], "", "v1"),
    ],
)
def test_a_cgroup_is_in_a_hierarchy_that_is_mounted(
    hierarchies: Callable[..., None],
    tmp_path: Path,
    mounted: list[str],
    controller: str,
    found: str,
) -> None:
    hierarchies(*mounted)
    with cgroups.cgroup(controller=controller) as folder:
        assert folder.parent == tmp_path / found
        assert cgroups.path_in_hierarchy(folder) == f"/{folder.name}"
    assert not folder.exists()


def test_without_the_hierarchy_the_skipped_test_names_it(hierarchies: Callable[..., None]) -> None:
    hierarchies("v2")
    skipped = pytest.raises(pytest.skip.Exception, match="v1: it is not mounted")
    with skipped, cgroups.cgroup("v1"):
        pass


def skipped() -> Any:
    return pytest.raises(pytest.skip.Exception)


def failed(feature: str) -> Any:
    return pytest.raises(AssertionError, match=f"{VARIABLE} lists {feature}, but: ")


@pytest.mark.parametrize("mounted", [[], ["v1"]])
def test_a_required_cgroup_is_not_skipped(
    hierarchies: Callable[..., None], monkeypatch: pytest.MonkeyPatch, mounted: list[str]
) -> None:
    hierarchies(*mounted)
    monkeypatch.setenv(VARIABLE, "pager,swap")
    with skipped(), cgroups.cgroup(controller="none"):
        pass
    monkeypatch.setenv(VARIABLE, "pager,cgroup")
    with failed("cgroup"), cgroups.cgroup(controller="none"):
        pass
    # If v1 is mounted, the machine has cgroups, as VARIABLE requires. It need not have v2, so tests
    # that need v2 are skipped.
    with skipped() if mounted else failed("cgroup"), cgroups.cgroup("v2"):
        pass


def test_required_swap_is_not_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swap, "ZRAM", tmp_path / "none")
    monkeypatch.setenv(VARIABLE, "")
    with skipped(), swap_area("zram", tmp_path, MIB):
        pass
    monkeypatch.setenv(VARIABLE, "swap")
    with failed("swap"), swap_area("zram", tmp_path, MIB):
        pass


def test_a_required_pager_is_not_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged, "DEVICE", str(tmp_path / "none"))
    monkeypatch.delenv(VARIABLE, raising=False)
    assert paged.pager_problem() is not None
    monkeypatch.setenv(VARIABLE, "pager")
    with failed("pager"):
        paged.pager_problem()


def test_unknown_features_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "swapp")
    with pytest.raises(AssertionError, match="swapp"):
        unless_required("swap", "no swap")
