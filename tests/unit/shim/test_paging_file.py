# SPDX-License-Identifier: Apache-2.0
"""The paging file grows as far as the disk has room; a failed growth leaves nothing behind."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.unit.shim.harness import COMPILER
from tests.unit.shim.paged import pager_problem
from tests.unit.shim.test_paging import paged

pytestmark = pytest.mark.skipif(pager_problem() is not None, reason=pager_problem() or "")

MIB = 1 << 20

FULL = """
import ctypes

def allocations(kind):
    return ctypes.c_uint.in_dll(ctypes.CDLL(None), kind + "_allocations").value

file = open_paging_file(folder, 16 * MIB)
status = lambda: os.fstat(file)
began_s = time.monotonic()
assert not native.paging(PagingSettings(file, 16 * MIB, 400 * MIB, os.dup(wake), BUDGET))
segment = budget(BUDGET)

def rewrite(rounds):
    for _ in range(rounds):
        for tensor in tensors:
            tensor.add_(1)
        for tensor in tensors:
            tensor.sub_(1)
"""
"""The beginning of a script: starts the pager with a file that may grow from 16 to 400 MiB. The
tensors take 40 MiB together."""


@pytest.fixture(scope="session")
def preload(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The library that is built from full_disk.c."""
    path = tmp_path_factory.mktemp("disk") / "full_disk.so"
    source = Path(__file__).with_name("full_disk.c")
    flags = "-std=gnu11 -O2 -Wall -Wextra -Werror -fPIC -shared".split()
    subprocess.run([COMPILER, *flags, "-o", str(path), str(source), "-ldl"], check=True)
    return str(path)


def test_the_file_takes_the_room_that_the_disk_has(preload: str, tmp_path: Path) -> None:
    found = paged(
        f"""{FULL}
rewrite(2)
now = counts(segment)
print(json.dumps([right(), now.write_error, allocations("failed") > 0, now.file_bytes / MIB,
                  status().st_size / MIB]))
""",
        tmp_path,
        LD_PRELOAD=preload,
        DISK_ROOM=str(60 * MIB),
    )
    right, error, failed, counted_mib, file_mib = found
    assert (right, error, failed) == (True, 0, True)
    assert 56 <= counted_mib == file_mib <= 60


def test_a_failed_growth_leaves_the_file_as_before(preload: str, tmp_path: Path) -> None:
    found = paged(
        f"""{FULL}
rewrite(2)
problem = native.paging(PagingSettings(-1, 100 * MIB, 100 * MIB, os.dup(wake)))
print(json.dumps([right(), problem, counts(segment).file_bytes / MIB, status().st_size / MIB,
                  status().st_blocks * 512 / MIB]))
""",
        tmp_path,
        LD_PRELOAD=preload,
        DISK_ROOM=str(18 * MIB),
    )
    right, problem, counted_mib, file_mib, allocated_mib = found
    assert (right, problem) == (True, "the disk has no room for a larger paging file")
    assert counted_mib == file_mib == 16
    assert allocated_mib < 17


def test_a_full_disk_is_not_tried_for_every_write(preload: str, tmp_path: Path) -> None:
    found = paged(
        f"""{FULL}
rewrite(10)
print(json.dumps([right(), counts(segment).bytes_written / MIB, allocations("failed"),
                  time.monotonic() - began_s]))
""",
        tmp_path,
        LD_PRELOAD=preload,
        DISK_ROOM=str(48 * MIB),
    )
    right, written_mib, failed, seconds = found
    assert right
    assert written_mib > 200
    # After a failure, the next attempt to enlarge the file begins five seconds later. An attempt
    # makes at most seven calls of fallocate(), for 256, 128, ... and 4 MiB. The first attempts
    # enlarge the file, though some of their calls can fail, too. No delay follows an attempt that
    # enlarges the file.
    assert failed <= 7 * (seconds // 5 + 4)


def test_a_step_does_not_wait_for_a_growth(preload: str, tmp_path: Path) -> None:
    found = paged(
        f"""{FULL}
wait(lambda: allocations("begun"))
now_s = time.monotonic()
before = counts(segment).file_bytes
step_s = time.monotonic() - now_s
wait(lambda: counts(segment).file_bytes > before)
print(json.dumps([right(), before / MIB, step_s, time.monotonic() - now_s]))
""",
        tmp_path,
        LD_PRELOAD=preload,
        DISK_ROOM=str(400 * MIB),
        DISK_SECONDS="6",
    )
    right, before_mib, step_s, growth_s = found
    assert (right, before_mib) == (True, 16)
    assert step_s < 2 < growth_s


def test_a_signal_does_not_end_a_growth(preload: str, tmp_path: Path) -> None:
    right, grown_mib, growth_s = paged(
        f"""{FULL}
wait(lambda: allocations("begun"))
now_s = time.monotonic()
wait(lambda: counts(segment).file_bytes > 16 * MIB)
grown_mib = counts(segment).file_bytes / MIB - 16
print(json.dumps([right(), grown_mib, time.monotonic() - now_s]))
""",
        tmp_path,
        LD_PRELOAD=preload,
        DISK_ROOM=str(400 * MIB),
        DISK_SIGNALS="40",
    )
    assert (right, grown_mib) == (True, 256)
    # If a signal ended a growth, the next attempt would begin five seconds later. With 40 signals,
    # the growth would take 200 s.
    assert growth_s < 150


@pytest.mark.parametrize("free_mib", [3, 60])
def test_no_more_space_is_tried_than_is_free(preload: str, tmp_path: Path, free_mib: int) -> None:
    """An attempt to get more space than is free would fill the disk completely, until the attempt
    fails and the space is freed again."""
    right, grown = paged(
        f"""{FULL}
rewrite(2)
grown = lambda: (counts(segment).file_bytes / MIB - 16) / 32
wait(lambda: grown() == allocations("begun"))
print(json.dumps([right(), grown()]))
""",
        tmp_path,
        LD_PRELOAD=preload,
        DISK_ROOM=str(400 * MIB),
        DISK_FREE=str(free_mib * MIB),
    )
    assert right
    # An attempt begins with 256 MiB and halves this amount until the disk has that much free space,
    # but not below 4 MiB.
    assert grown >= 1 if free_mib == 60 else grown == 0


def test_space_is_allocated_in_whole_blocks(preload: str, tmp_path: Path) -> None:
    """The smallest growth, 4 MiB, takes a whole block, and no block is free."""
    right, begun = paged(
        f"""{FULL}
problem = native.paging(PagingSettings(-1, 20 * MIB, 20 * MIB, os.dup(wake)))
assert problem == "the disk has no room for a larger paging file", problem
print(json.dumps([right(), allocations("begun")]))
""",
        tmp_path,
        LD_PRELOAD=preload,
        DISK_ROOM=str(400 * MIB),
        DISK_FREE=str(7 * MIB),
        DISK_BLOCK=str(8 * MIB),
    )
    assert (right, begun) == (True, 0)
