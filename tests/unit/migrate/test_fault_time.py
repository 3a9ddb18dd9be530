# SPDX-License-Identifier: Apache-2.0
"""The time of a fault is measured with a real userfaultfd."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentineld.host.userfaultfd import DEVICE
from sentineld.migrate import fault_time
from sentineld.migrate.fault_time import measure_faults
from sentineld.model.timing import FAULT_BYTES
from tests.unit.descriptors import open_descriptors

FILE_BYTES = 8 * FAULT_BYTES
READ_S = 0.01
WAKE_S = 0.01

pytestmark = pytest.mark.skipif(
    not os.access(DEVICE, os.R_OK | os.W_OK), reason=f"needs access to {DEVICE}"
)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(FILE_BYTES))
    descriptor = os.open(path, os.O_RDWR | os.O_DIRECT)
    yield descriptor
    os.close(descriptor)


def left_over() -> tuple[set[str], set[threading.Thread]]:
    """The open descriptors and the threads."""
    return open_descriptors(), set(threading.enumerate())


def nothing_since(before: tuple[set[str], set[threading.Thread]]) -> bool:
    """Whether no descriptor and no thread is new. Some of `before` may be missing, because a thread
    of an earlier test may have closed descriptors and ended."""
    (descriptors, threads), now = before, left_over()
    return now[0] <= descriptors and now[1] <= threads


def test_a_fault_takes_the_time_of_its_read_and_of_its_wake_ups(
    file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, wake = os.preadv, fault_time.next_fault

    def slow_read(*arguments: object) -> int:
        time.sleep(READ_S)
        return read(*arguments)  # type: ignore[arg-type]

    def slow_wake(descriptor: int) -> int | None:
        time.sleep(WAKE_S)
        return wake(descriptor)

    monkeypatch.setattr(os, "preadv", slow_read)
    monkeypatch.setattr(fault_time, "next_fault", slow_wake)
    before = left_over()
    found = measure_faults(file, FILE_BYTES)
    assert found.ns > (READ_S + WAKE_S) * 1e9
    assert 0 < found.wake_ns <= found.ns - READ_S * 1e9
    assert nothing_since(before)


def test_a_failing_read_does_not_block(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", fail)
    before = left_over()
    with pytest.raises(OSError, match="Input/output error"):
        measure_faults(file, FILE_BYTES)
    assert nothing_since(before)
