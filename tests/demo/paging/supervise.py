# SPDX-License-Identifier: Apache-2.0
"""Runs the measuring process and leaves nothing behind, however that process ends.

The measuring process removes everything that it sets up, unless it is killed or interrupted. Ctrl-C
does not interrupt the supervising process. When the measuring process has ended, the supervising
process disables any remaining swap files, restores the kernel's settings, and removes any remaining
cgroups.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from tests.bench.paging.group import groups_of, remove_group
from tests.bench.paging.swap import SETTINGS, VM, swap_files

ENDING_S = 5.0
"""After this time, processes that were asked to end are killed."""
SWAPOFF_S = 60.0
POLL_S = 0.05

Event = dict[str, Any]


class InterruptedBySignalError(Exception):
    """The user or the system ended the demo. number: the number of the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.number = number


class Signals:
    """Lets SIGINT, SIGTERM and SIGHUP end another process group instead of this process."""

    NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self.received = 0
        """The number of the first signal that came, or 0."""
        self._group = 0

    @contextlib.contextmanager
    def caught(self) -> Iterator[None]:
        """Catch the signals NUMBERS while the context is active."""
        before = {number: signal.signal(number, self._on_signal) for number in self.NUMBERS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def forward_to(self, group: int) -> None:
        """Choose the process group that a signal ends. If a signal has come, end the group now."""
        self._group = group
        if self.received:
            signal_group(group, signal.SIGTERM)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or number
        if self._group:
            signal_group(self._group, signal.SIGTERM)


def supervised(
    command: Callable[[Path], list[str]],
    folder: Path,
    log: Path,
    on_event: Callable[[Event], None],
    signals: Signals,
) -> int:
    """Run a command, undo the changes that it leaves, and return its exit status.

    command: returns the command line; its argument is a new folder in `folder` for the files of the
        command.
    signals: the caller must have entered the context signals.caught().
    Raises InterruptedBySignalError after a signal, or RuntimeError if a change cannot be undone.
    """
    before = kernel_settings()
    with (
        tempfile.TemporaryDirectory(prefix="sentineld-demo-") as scratch,
        tempfile.TemporaryDirectory(prefix="demo-", dir=folder) as work,
        log.open("w") as errors,
    ):
        process = subprocess.Popen(
            command(Path(work)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "TMPDIR": scratch},
            start_new_session=True,  # Ctrl-C must not reach the trainings
        )
        assert process.stdout is not None
        try:
            signals.forward_to(process.pid)
            for line in process.stdout:
                on_event(json.loads(line))
        finally:
            status = end(process)
            undo(Path(work), process.pid, before)
        if signals.received:
            raise InterruptedBySignalError(signals.received)
    return status


def end(process: subprocess.Popen[str]) -> int:
    """End a process and its process group, which it leads; return the process's exit status."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(ENDING_S)
    for number in (signal.SIGTERM, signal.SIGKILL):
        signal_group(process.pid, number)
        deadline_s = time.monotonic() + ENDING_S
        while signal_group(process.pid, 0) and time.monotonic() < deadline_s:
            process.poll()  # an ended process belongs to its group until it is reaped
            time.sleep(POLL_S)
    return process.wait()


def signal_group(group: int, number: int) -> bool:
    """Send a signal, or 0 for none, to a process group; return whether the group exists."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def kernel_settings() -> dict[str, str]:
    """Current values of the kernel settings that the training with Linux swap changes, by name."""
    return {name: (VM / name).read_text() for name in SETTINGS if (VM / name).exists()}


def undo(work: Path, pid: int, settings: dict[str, str]) -> None:
    """Undo the changes that an ended process left: swap files, kernel settings and cgroups.

    work: the folder with the process's files. settings: the kernel settings to restore.
    Raises RuntimeError if a change cannot be undone.
    """
    left = [f"swapoff {file}" for file in swapped_off(work.resolve())]
    for name, text in settings.items():
        if (VM / name).read_text() != text:
            (VM / name).write_text(text)
    left += [f"rmdir {group}" for group in groups_of(pid) if not remove_group(group)]
    if left:
        raise RuntimeError(f"something is left behind; remove it with: {' && '.join(left)}")


def swapped_off(folder: Path) -> list[Path]:
    """Disable the swap files in the folder. Return those that could not be disabled in time."""
    deadline_s = time.monotonic() + SWAPOFF_S
    while files := [file for file in swap_files() if file.is_relative_to(folder)]:
        if time.monotonic() > deadline_s:
            break
        for file in files:
            # This fails while a swapoff that the ended process started is still running.
            subprocess.run(["swapoff", file], start_new_session=True, check=False)
        time.sleep(POLL_S)
    return files
