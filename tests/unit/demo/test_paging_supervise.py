# SPDX-License-Identifier: Apache-2.0
"""The demo's first part leaves nothing behind, however its measuring process ends.

The measuring processes are real. None of them swaps or changes a setting, because other
tests run at the same time.
"""

from __future__ import annotations

import fnmatch
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.bench.paging.group import MemoryGroup
from tests.bench.traces import ROOT
from tests.demo.paging import supervise
from tests.demo.paging.supervise import InterruptedBySignalError, Signals, supervised

PRINT = "import sys; print(sys.argv[2], flush=True)"
LEAVE = """
import pathlib, subprocess, sys, time
from tests.bench.paging.group import MemoryGroup
group = MemoryGroup("left")
(pathlib.Path(sys.argv[1]) / "swapfile").write_text("a file")
child = [*group.prefix, sys.executable, "-c", "import time; time.sleep(600)"]
print('{"child": %d}' % subprocess.Popen(child, stdout=subprocess.DEVNULL).pid, flush=True)
time.sleep(600 * int(sys.argv[2]))
"""
"""A process with a cgroup, a file and a child. The process sleeps if its second argument is 1;
otherwise it ends and leaves the child behind."""


def run(folder: Path, code: str, argument: str, events: list[Any], signals: Signals) -> int:
    def command(work: Path) -> list[str]:
        return [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}",
                str(work), argument]  # fmt: skip

    def on_event(event: Any) -> None:
        events.append(event)
        if argument == "1":
            os.kill(os.getpid(), signal.SIGINT)

    with signals.caught():
        return supervised(command, folder, folder / "log", on_event, signals)


def ended(pid: int) -> bool:
    """Whether a process ends within 60 s. A zombie counts as ended."""
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        try:
            if "Z (zombie)" in Path(f"/proc/{pid}/status").read_text():
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


@pytest.fixture
def groups() -> None:
    try:
        MemoryGroup("probe").close()
    except RuntimeError as error:
        pytest.skip(str(error))


def groups_left() -> list[Path]:
    # Other tests can remove cgroups during the walk. os.walk() skips a folder that has vanished.
    return [
        Path(folder) / name
        for folder, names, _ in os.walk("/sys/fs/cgroup")
        for name in fnmatch.filter(names, "sentineld-*-left")
    ]


def test_events_arrive_and_the_files_are_removed(tmp_path: Path) -> None:
    events: list[Any] = []
    assert run(tmp_path, PRINT, '{"text": "a line"}', events, Signals()) == 0
    assert events == [{"text": "a line"}]
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_the_status_of_a_failed_process(tmp_path: Path) -> None:
    assert run(tmp_path, "raise SystemExit(7)", "", [], Signals()) == 7
    assert run(tmp_path, "import os; os.kill(os.getpid(), 9)", "", [], Signals()) == -9


@pytest.mark.usefixtures("groups")
def test_a_signal_ends_everything(tmp_path: Path) -> None:
    events: list[Any] = []
    with pytest.raises(InterruptedBySignalError) as caught:
        run(tmp_path, LEAVE, "1", events, Signals())
    assert caught.value.number == signal.SIGINT
    assert ended(events[0]["child"])
    assert groups_left() == []
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


@pytest.mark.usefixtures("groups")
def test_a_process_that_cleans_nothing_up_leaves_nothing(tmp_path: Path) -> None:
    events: list[Any] = []
    assert run(tmp_path, LEAVE, "0", events, Signals()) == 0
    assert ended(events[0]["child"])
    assert groups_left() == []
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_a_signal_before_the_start_is_not_lost(tmp_path: Path) -> None:
    signals = Signals()
    with signals.caught():
        os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(InterruptedBySignalError):
        run(tmp_path, "import time; time.sleep(600)", "", [], signals)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_kernel_settings_are_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder takes the place of /proc/sys/vm, because other tests need the real settings."""
    monkeypatch.setattr(supervise, "VM", tmp_path)
    (tmp_path / "page-cluster").write_text("3\n")
    (tmp_path / "swappiness").write_text("10\n")
    before = supervise.kernel_settings()
    (tmp_path / "swappiness").write_text("60\n")
    supervise.undo(tmp_path, os.getpid(), before)
    assert (tmp_path / "page-cluster").read_text() == "3\n"
    assert (tmp_path / "swappiness").read_text() == "10\n"
