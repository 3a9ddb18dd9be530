# SPDX-License-Identifier: Apache-2.0
"""Calls the shim's pager through ctypes.

Run as a program, this file executes one of its cases: `python -m tests.unit.shim.paged LIBRARY CASE
FOLDER`.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.required import unless_required

PAGE = mmap.PAGESIZE
REQUESTS = 4
DEVICE = "/dev/userfaultfd"
PATIENCE_S = 600


def pager_problem() -> str | None:
    """The reason why no pager can run on this machine; None if a pager can run. Raises
    AssertionError if the machine must have the feature "pager"; see tests/required.py."""
    release = tuple(int(part) for part in os.uname().release.split(".")[:2])
    if release < (6, 8):
        return unless_required("pager", "needs Linux 6.8 or later for UFFDIO_MOVE")
    if os.access(DEVICE, os.R_OK | os.W_OK):
        return None
    return unless_required("pager", f"needs access to {DEVICE}")


class Settings(ctypes.Structure):
    """struct pager_settings."""

    _fields_ = (
        ("device", ctypes.c_int),
        ("file", ctypes.c_int),
        ("file_pages", ctypes.c_uint64),
        ("budget_pages", ctypes.c_uint64),
        ("requests", ctypes.c_uint),
        ("notify", ctypes.c_int),
    )


class Counts(ctypes.Structure):
    """struct pager_counts."""

    _fields_ = (
        ("bytes_read", ctypes.c_uint64),
        ("bytes_written", ctypes.c_uint64),
        ("faults", ctypes.c_uint64),
        ("births_by_fault", ctypes.c_uint64),
        ("clean_pages", ctypes.c_uint64),
        ("waits", ctypes.c_uint64),
        ("fault_reads", ctypes.c_uint64),
        ("fault_read_ns", ctypes.c_uint64),
        ("overruns", ctypes.c_uint64),
        ("frames", ctypes.c_uint64),
        ("write_error", ctypes.c_int),
    )


def load(path: Path) -> ctypes.CDLL:
    """Load the pager's library and declare the types of its functions."""
    library = ctypes.CDLL(str(path))
    pages = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)
    library.pager_start.restype = ctypes.c_char_p
    library.pager_start.argtypes = (ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(Settings))
    library.pager_add.restype = ctypes.c_char_p
    library.pager_evict.restype = library.pager_fetch.restype = ctypes.c_uint64
    for name in ("born", "born_out", "dropped"):
        getattr(library, f"pager_{name}").argtypes = pages
    library.pager_add.argtypes = (*pages, ctypes.c_uint64)
    for name in ("evict", "fetch"):
        getattr(library, f"pager_{name}").argtypes = (*pages, ctypes.POINTER(ctypes.c_uint64))
    for name in ("checksum", "checksum_portable"):
        getattr(library, name).restype = ctypes.c_uint64
        getattr(library, name).argtypes = (ctypes.c_void_p, ctypes.c_uint64)
    library.pager_set_budget.argtypes = (ctypes.c_void_p, ctypes.c_uint64)
    library.pager_read_counts.argtypes = (ctypes.c_void_p, ctypes.POINTER(Counts))
    for name in ("stop", "settle", "pass"):
        getattr(library, f"pager_{name}").argtypes = (ctypes.c_void_p,)
    for name in ("before_fork", "after_fork_in_parent", "after_fork_in_child"):
        getattr(library, f"pager_{name}").argtypes = (ctypes.c_void_p,)
    return library


def backing_file(folder: Path, pages: int, flags: int = os.O_RDWR) -> int:
    """Create a file of `pages` pages and open it with O_DIRECT; returns the descriptor."""
    path = folder / "backing"
    path.touch()
    os.truncate(path, pages * PAGE)
    return os.open(path, flags | os.O_DIRECT | os.O_CLOEXEC)


class Paged:
    """Memory of `pages` pages under a pager. Pages are absent at first, except the first `used`
    pages, which are filled with seed 1 before the pager starts."""

    def __init__(
        self,
        library: ctypes.CDLL,
        file: int,
        file_pages: int,
        pages: int,
        budget: int,
        used: int = 0,
        requests: int = REQUESTS,
        notify: int = -1,
    ) -> None:
        """requests, notify: see struct pager_settings."""
        self._library = library
        self._pager = ctypes.c_void_p()
        self._map = mmap.mmap(-1, pages * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.words: npt.NDArray[np.uint64] = np.frombuffer(self._map, np.uint64).reshape(pages, -1)
        """Shape: (pages, words of a page)."""
        self._base = self.words.ctypes.data
        self.fill(0, used, 1)
        settings = Settings(-1, file, file_pages, budget, requests, notify)
        problem = library.pager_start(ctypes.byref(self._pager), ctypes.byref(settings))
        if not problem:
            problem = library.pager_add(self._pager, self._base, pages * PAGE, pages * PAGE)
        assert not problem, problem.decode()

    def born(self, first: int, pages: int) -> None:
        """Give frames to absent pages, as soon as frames are free. Does not wait."""
        self._library.pager_born(self._pager, self._base + first * PAGE, pages)

    def born_out(self, first: int, pages: int) -> None:
        """From now on, a birth of these pages does not mean that they are planned to be in memory;
        see pager.h."""
        self._library.pager_born_out(self._pager, self._base + first * PAGE, pages)

    def dropped(self, first: int, pages: int) -> None:
        """Make pages absent."""
        self._library.pager_dropped(self._pager, self._base + first * PAGE, pages)

    def evict(self, first: int, pages: int) -> int:
        """Begin to evict pages; returns the number of pages whose eviction this call has begun."""
        return self._move(self._library.pager_evict, first, pages)[0]

    def evict_on(self, first: int, pages: int) -> int:
        """Begin to evict pages. Returns the number of pages at the beginning of the range that need
        no further call of evict_on()."""
        return self._move(self._library.pager_evict, first, pages)[1]

    def fetch(self, first: int, pages: int) -> int:
        """Begin to fetch pages, as long as frames are free. Returns the number of pages at the
        beginning of the range that need no further call of fetch()."""
        return self._move(self._library.pager_fetch, first, pages)[1]

    def _move(self, begin: Callable[..., int], first: int, pages: int) -> tuple[int, int]:
        """Returns (pages whose move has begun, pages at the beginning that need no further
        call)."""
        done = ctypes.c_uint64()
        begun = begin(self._pager, self._base + first * PAGE, pages, ctypes.byref(done))
        return begun, done.value

    def discard(self, first: int, pages: int) -> None:
        """Drop pages with madvise() and without calling the pager, as a program can do."""
        self.advise(mmap.MADV_DONTNEED, first, pages)

    def lock(self, first: int, pages: int) -> None:
        """Lock pages with mlock(2), as a program can do. Pages in the file are fetched."""
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mlock(ctypes.c_void_p(self._base + first * PAGE), ctypes.c_size_t(pages * PAGE)):
            raise OSError(ctypes.get_errno(), "mlock() failed")

    def advise(self, advice: int, first: int, pages: int) -> None:
        """Call madvise(2) with this advice, as a program can do."""
        self._map.madvise(advice, first * PAGE, pages * PAGE)

    def begin_stretch(self) -> None:
        """Report that another stretch begins."""
        self._library.pager_pass(self._pager)

    def settle(self) -> None:
        """Wait until no page is being evicted or fetched."""
        self._library.pager_settle(self._pager)

    def set_budget(self, pages: int) -> None:
        """Change the budget."""
        self._library.pager_set_budget(self._pager, pages)

    def counts(self) -> Counts:
        """The pager's counters."""
        counts = Counts()
        self._library.pager_read_counts(self._pager, ctypes.byref(counts))
        return counts

    def fill(self, first: int, pages: int, seed: int) -> None:
        """Give each page a content that depends on the page and the seed."""
        self.words[first : first + pages] = self.expected(first, pages, seed)

    def expected(self, first: int, pages: int, seed: int) -> npt.NDArray[np.uint64]:
        """The numbers that fill() writes."""
        numbers = np.arange(first, first + pages, dtype=np.uint64)[:, None] << np.uint64(32)
        offsets = np.arange(self.words.shape[1], dtype=np.uint64)[None, :]
        found: npt.NDArray[np.uint64] = (numbers | offsets) * np.uint64(2 * seed + 1)
        return found

    def fill_and_evict(self, *tensors: int) -> None:
        """Create tensors of these sizes (in pages), one after another from page 0 on. Fill them
        with seed 1 and evict them."""
        first, pages = 0, sum(tensors)
        for tensor in tensors:
            self.born(first, tensor)
            first += tensor
        self.fill(0, pages, 1)
        assert self.evict(0, pages) == pages
        self.settle()

    def holds(self, first: int, pages: int, seed: int) -> bool:
        """Whether the pages contain the numbers that fill() writes."""
        return bool(
            np.array_equal(self.words[first : first + pages], self.expected(first, pages, seed))
        )

    def fork(self) -> int:
        """Fork, and call the pager as the shim's fork handlers do; returns 0 in the child."""
        self._library.pager_before_fork(self._pager)
        pid = os.fork()
        side = "child" if pid == 0 else "parent"
        getattr(self._library, f"pager_after_fork_in_{side}")(self._pager)
        return pid

    def ask(self, function: str) -> int:
        """Call a function of the library that takes the pager and returns an int."""
        answer: int = getattr(self._library, function)(self._pager)
        return answer

    def stop(self) -> None:
        """Fetch all pages, and stop the pager."""
        self._library.pager_stop(self._pager)


def filled_and_evicted(library: ctypes.CDLL, folder: Path, flags: int = os.O_RDWR) -> Paged:
    """256 pages that are filled with seed 1 and evicted."""
    paged = Paged(library, backing_file(folder, 1024, flags), 1024, 256, 256)
    paged.fill_and_evict(256)
    return paged


def read_corrupt(library: ctypes.CDLL, folder: Path) -> None:
    """Another program changes one bit of the file."""
    paged = filled_and_evicted(library, folder)
    with (folder / "backing").open("r+b") as file:
        file.seek(100 * PAGE + 1234)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 4]))
    print(paged.words.sum())


def read_all_corrupt(library: ctypes.CDLL, folder: Path) -> None:
    """Another program changes all pages of the file, so that several threads of the pager find
    corrupt pages at the same time."""
    pages = 4096
    paged = Paged(library, backing_file(folder, pages), pages, pages, pages)
    paged.fill_and_evict(pages)
    with (folder / "backing").open("r+b") as file:
        file.write(bytes(pages * PAGE))
    paged.fetch(0, pages)
    print(paged.words.sum())


def read_fails(library: ctypes.CDLL, folder: Path) -> None:
    """The file is truncated to 0 bytes, so that reads fail."""
    paged = filled_and_evicted(library, folder)
    os.truncate(folder / "backing", 0)
    print(paged.words.sum())


def write_fails(library: ctypes.CDLL, folder: Path) -> None:
    """The file cannot be written."""
    paged = filled_and_evicted(library, folder, os.O_RDONLY)
    assert paged.counts().write_error == -errno.EBADF
    assert paged.holds(0, 256, 1)
    assert paged.evict(0, 256) == 0
    paged.born(0, 256)
    paged.stop()


def disk_full(library: ctypes.CDLL, folder: Path) -> None:
    """The file has free pages, but no write finds room on the disk."""
    file = os.open("/dev/full", os.O_RDWR | os.O_CLOEXEC)
    paged = Paged(library, file, 1024, 256, 64)
    for first in range(0, 256, 32):
        paged.born(first, 32)
        paged.fill(first, 32, 1)
    paged.settle()
    assert paged.counts().write_error == -errno.ENOSPC
    assert paged.evict(0, 256) == 0
    assert paged.holds(0, 256, 1)
    paged.stop()


def file_full(library: ctypes.CDLL, folder: Path) -> None:
    """The file has only 129 pages for 512 pages of memory."""
    paged = Paged(library, backing_file(folder, 129), 129, 512, 64)
    for first in range(0, 512, 32):
        paged.born(first, 32)
        paged.fill(first, 32, 1)
    paged.settle()
    assert paged.counts().write_error == -errno.ENOSPC
    assert paged.holds(0, 512, 1)
    paged.stop()


def fork_children(library: ctypes.CDLL, folder: Path) -> None:
    """Children read pages that were evicted before the fork. Meanwhile, the parent changes its own
    copies of these pages."""
    paged = filled_and_evicted(library, folder)
    children = []
    for seed in (1, 2, 3):
        go_reading, go_writing = os.pipe()
        pid = paged.fork()
        if pid == 0:
            os.close(go_writing)
            signal.alarm(PATIENCE_S)
            right = paged.holds(0, 100, seed)
            os.read(go_reading, 1)
            os._exit(0 if right and paged.holds(0, 256, seed) else 1)
        os.close(go_reading)
        children.append((pid, go_writing))
        paged.fill(0, 256, seed + 1)
        paged.evict(0, 256)
        paged.settle()
    # The later children hold the earlier pipes open, too, so close all pipes before the first wait.
    for _, go_writing in children:
        os.close(go_writing)
    for pid, _ in children:
        assert os.waitpid(pid, 0)[1] == 0, "a child read wrong numbers"
    # The file had no room for another version of the pages while children held earlier versions.
    assert paged.counts().write_error == -errno.ENOSPC
    deadline_s = time.monotonic() + PATIENCE_S
    while paged.evict(0, 256) == 0:
        assert time.monotonic() < deadline_s
    paged.settle()
    for seed in range(5, 25):
        paged.fill(0, 256, seed)
        before = paged.counts().bytes_read
        paged.evict(0, 256)
        paged.settle()
        assert paged.holds(0, 256, seed)
        # evict() may begin fewer than 256 evictions, because the pager may have evicted some pages
        # before, to make room for reading ahead. These pages are in the file, too, so holds() reads
        # all 256 pages from it.
        assert paged.counts().bytes_read - before >= 256 * PAGE
        assert paged.counts().write_error == 0
    paged.stop()


def fork_overlaps(library: ctypes.CDLL, folder: Path) -> None:
    """The first of two children ends before the second one has read its evicted pages."""
    paged = filled_and_evicted(library, folder)
    children = []
    for _ in range(2):
        go_reading, go_writing = os.pipe()
        pid = paged.fork()
        if pid == 0:
            os.close(go_writing)
            for _, earlier in children:
                os.close(earlier)
            os.read(go_reading, 1)
            os._exit(0 if paged.holds(0, 256, 1) else 1)
        os.close(go_reading)
        children.append((pid, go_writing))
    for pid, go_writing in children:
        for seed in (2, 3):
            paged.fill(0, 256, seed)
            paged.evict(0, 256)
            paged.settle()
        os.write(go_writing, b"?")
        assert os.waitpid(pid, 0)[1] == 0, "a child read wrong numbers"
    assert paged.holds(0, 256, 3)
    paged.stop()


def fork_repeatedly(library: ctypes.CDLL, folder: Path) -> None:
    """While one child lives, many other children are forked and end. The parent writes to its pages
    after each fork. The file has room for six versions of the pages."""
    file = backing_file(folder, 1600)
    paged = Paged(library, file, 1600, 256, 256)
    paged.fill_and_evict(256)
    go_reading, go_writing = os.pipe()
    long_lived = paged.fork()
    if long_lived == 0:
        os.close(go_writing)
        os.read(go_reading, 1)
        os._exit(0 if paged.holds(0, 256, 1) else 1)
    deadline_s = time.monotonic() + PATIENCE_S
    for seed in range(2, 22):
        paged.fill(0, 256, seed)
        paged.evict(0, 256)
        paged.settle()
        # The pager may not have noticed yet that the last children have ended.
        while paged.counts().write_error:
            assert time.monotonic() < deadline_s, f"the file is full after {seed} versions"
            paged.evict(0, 256)
            paged.settle()
        pid = paged.fork()
        if pid == 0:
            os._exit(0 if paged.holds(0, 256, seed) else 1)
        assert os.waitpid(pid, 0)[1] == 0, "a child read wrong numbers"
    os.write(go_writing, b"?")
    assert os.waitpid(long_lived, 0)[1] == 0, "the child read wrong numbers"
    assert paged.holds(0, 256, 21)
    paged.stop()


def fork_closes_descriptors(library: ctypes.CDLL, folder: Path) -> None:
    """A child becomes a service as daemon(7) describes: it closes its descriptors, forks a process,
    and ends. The process that it forked reads pages that were evicted before the first fork.
    Another child holds a later version of these pages. The file has room for two and a half
    versions."""
    paged = Paged(library, backing_file(folder, 640), 640, 256, 256)
    paged.fill_and_evict(256)
    go_reading, go_writing = os.pipe()
    result_reading, result_writing = os.pipe()
    child = paged.fork()
    if child == 0:
        os.closerange(3, go_reading)
        os.closerange(go_reading + 1, result_writing)
        os.closerange(result_writing + 1, 4096)
        if os.fork():
            os._exit(0)
        signal.alarm(PATIENCE_S)
        os.read(go_reading, 1)
        os.write(result_writing, b"right" if paged.holds(0, 256, 1) else b"wrong")
        os._exit(0)
    os.close(result_writing)
    assert os.waitpid(child, 0)[1] == 0
    for seed in (2, 3, 4):
        paged.fill(0, 256, seed)
        paged.evict(0, 256)
        paged.settle()
    assert paged.counts().write_error == 0
    other = paged.fork()
    if other == 0:
        signal.alarm(PATIENCE_S)
        signal.pause()
    paged.fill(0, 256, 5)
    paged.evict(0, 256)
    paged.settle()
    assert paged.counts().write_error == -errno.ENOSPC
    os.write(go_writing, b"?")
    assert os.read(result_reading, 5) == b"right"
    assert os.waitpid(-1, os.WNOHANG)[0] == 0  # the other child lives
    deadline_s = time.monotonic() + PATIENCE_S
    while paged.evict(0, 256) == 0:
        assert time.monotonic() < deadline_s
    paged.settle()
    assert paged.counts().write_error == 0
    assert paged.holds(0, 256, 5)
    os.kill(other, signal.SIGKILL)
    paged.stop()


def fork_drops(library: ctypes.CDLL, folder: Path) -> None:
    """The parent drops 32 MiB that it shares with a child. UFFDIO_MOVE can't move shared pages."""
    pages = 8192
    paged = Paged(library, backing_file(folder, pages), pages, pages, pages)
    paged.born(0, pages)
    paged.fill(0, pages, 1)
    go_reading, go_writing = os.pipe()
    pid = paged.fork()
    if pid == 0:
        os.close(go_writing)
        os.read(go_reading, 1)
        os._exit(0 if paged.holds(0, pages, 1) else 1)
    paged.dropped(0, pages)
    assert paged.counts().frames == 0
    os.write(go_writing, b"?")
    assert os.waitpid(pid, 0)[1] == 0, "the child read wrong numbers"
    paged.born(0, pages)
    paged.fill(0, pages, 2)
    assert paged.counts().frames == pages
    paged.stop()


def fork_without_mappings(
    library: ctypes.CDLL, folder: Path, before: Callable[[], None] = lambda: None
) -> int:
    """Fork a child that can make no mappings, as if it already had vm.max_map_count mappings.
    Returns the child's wait status; 0: it has read the right numbers. before: called before the
    fork."""
    paged = filled_and_evicted(library, folder)
    before()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (PAGE, limits[1]))
    pid = paged.fork()
    resource.setrlimit(resource.RLIMIT_AS, limits)
    if pid == 0:
        os._exit(0 if paged.holds(0, 256, 1) else 1)
    return os.waitpid(pid, 0)[1]


def fork_reads(library: ctypes.CDLL, folder: Path) -> None:
    """A child that can make no mappings reads the evicted pages from the file."""
    assert fork_without_mappings(library, folder) == 0, "the child read wrong numbers"


def fork_read_fails(library: ctypes.CDLL, folder: Path) -> None:
    """A child can neither map nor read the evicted pages."""
    status = fork_without_mappings(library, folder, lambda: os.truncate(folder / "backing", 0))
    signal.raise_signal(os.WTERMSIG(status))


def kernel_reads(library: ctypes.CDLL, folder: Path) -> None:
    """The kernel reads evicted pages during write(2), with and without O_DIRECT."""
    paged = filled_and_evicted(library, folder)
    wanted = paged.expected(0, 256, 1).tobytes()
    for flags in (0, os.O_DIRECT):
        path = folder / "checkpoint"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | flags)
        assert os.write(file, paged.words) == len(wanted)
        os.close(file)
        assert path.read_bytes() == wanted
        assert paged.evict(0, 256) == 256
        paged.settle()
    paged.stop()


def several_operands(library: ctypes.CDLL, folder: Path) -> None:
    """An operation on three ranges that are planned to be in the file. Nearly all frames hold pages
    that are planned to be in memory. The operands must not evict each other's pages endlessly."""
    paged = Paged(library, backing_file(folder, 8192), 8192, 4000, 1300)
    for first in range(0, 4000, 100):
        paged.born(first, 100)
        paged.fill(first, 100, 1)
    while paged.evict(0, 4000):
        paged.settle()
    for first in range(0, 1280, 20):
        assert paged.fetch(first, 20) == 20
        paged.settle()
    one, two, three = (paged.words[first : first + 900] for first in (1300, 2200, 3100))
    wanted = paged.expected(1300, 900, 1) + paged.expected(2200, 900, 1)
    for _ in range(3):
        np.add(one, two, out=three)
        assert np.array_equal(three, wanted)
    paged.stop()


CASES: dict[str, Callable[[ctypes.CDLL, Path], None]] = {
    case.__name__: case
    for case in (
        read_corrupt,
        read_all_corrupt,
        read_fails,
        write_fails,
        disk_full,
        file_full,
        fork_children,
        fork_overlaps,
        fork_repeatedly,
        fork_closes_descriptors,
        fork_drops,
        fork_reads,
        fork_read_fails,
        kernel_reads,
        several_operands,
    )
}

if __name__ == "__main__":
    CASES[sys.argv[2]](load(Path(sys.argv[1])), Path(sys.argv[3]))
    print("done")
