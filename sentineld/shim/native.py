# SPDX-License-Identifier: Apache-2.0
"""Find or build the shim's C library, load it before torch, and wrap its functions."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

SHIM_VERSION = 10
LIBRARY_NAME = "libsentinelshim.so"
LIBRARY_VARIABLE = "SENTINELD_SHIM_LIBRARY"
HEAP_VARIABLE = "SENTINELD_SHIM_HEAP_BYTES"
RING_RECORDS = 131072
HEAP_PER_MEMORY = 2
"""Bytes of heap address space per byte of RAM. A value above 1 leaves room for fragmentation;
address space that is never touched takes no memory."""
HEAP_PAGES_MAX = (1 << 32) - 3
"""Maximum size of the heap, in pages (heap_init() in native/heap.c): 16 TiB with pages of 4 KiB."""

_SOURCES = Path(__file__).parent / "native"
_COMPILE_FLAGS = (
    *("-O2", "-g", "-std=gnu11", "-fPIC", "-fvisibility=hidden", "-fexceptions", "-pthread"),
    *("-shared", "-Wl,-z,lazy", f"-Wl,-soname,{LIBRARY_NAME}"),
)
"""The flags of native/Makefile without the warning options. The Makefile explains some of these
flags."""


class ShimUnavailableError(Exception):
    """The shim cannot work in this process; the message says why. The training continues without
    the shim."""


def library_path() -> Path:
    """Path of the shim's C library.

    If SENTINELD_SHIM_LIBRARY is set, returns its value. Otherwise, returns the packaged library,
    provided that it exists and no source file is newer. In all other cases, returns a library in
    the cache, which is built if it does not exist yet. If the build fails, a packaged library is
    returned even if a source file is newer.

    Raises:
        ShimUnavailableError: there is no packaged library, and none can be built.
    """
    named = os.environ.get(LIBRARY_VARIABLE)
    if named:
        return Path(named)
    packaged = Path(__file__).parent / LIBRARY_NAME
    sources = sorted(_SOURCES.rglob("*.[ch]"))
    if packaged.exists():
        built = packaged.stat().st_mtime
        if all(source.stat().st_mtime <= built for source in sources):
            return packaged
    try:
        return _build(sources)
    except ShimUnavailableError:
        if packaged.exists():
            # The packaged library may be current although a source file is newer: copying a file
            # can change its mtime. Native checks the library's protocol version.
            return packaged
        raise


def _cache_directory() -> Path:
    """A folder that only this user can write to: in the user's cache, or else in the system's
    folder for temporary files. Raises OSError."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    with contextlib.suppress(OSError):
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    own, shared = cache / "sentineld", Path(tempfile.gettempdir()) / f"sentineld-{os.getuid()}"
    for path in (own, shared):
        try:
            path.mkdir(mode=0o700, exist_ok=True)
            status = path.stat(follow_symlinks=path is own)
        except OSError:
            continue
        # Another user may have created the folder, or a link in its place, to make this process
        # load a library of that user.
        ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
        if ours and not status.st_mode & 0o022 and os.access(path, os.W_OK):
            return path
    return Path(tempfile.mkdtemp(prefix="sentineld-"))


def _build(sources: list[Path]) -> Path:
    """Path of the cached library that was built from these sources. Builds it if needed.
    Raises ShimUnavailableError."""
    try:
        return _cached_or_compiled(sources)
    except OSError as error:
        raise ShimUnavailableError(f"{LIBRARY_NAME} cannot be built: {error}") from error


def _cached_or_compiled(sources: list[Path]) -> Path:
    if not sources:
        raise ShimUnavailableError(f"neither {LIBRARY_NAME} nor its sources are installed")
    digest = hashlib.sha256(" ".join([platform.machine(), *_COMPILE_FLAGS]).encode())
    for source in sources:
        digest.update(source.read_bytes())
    directory = _cache_directory()
    path = directory / f"{digest.hexdigest()[:16]}-{LIBRARY_NAME}"
    if path.exists():
        return path
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        raise ShimUnavailableError(f"no C compiler to build {LIBRARY_NAME} (install gcc)")
    units = [str(source) for source in sources if source.suffix == ".c"]
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        output = Path(scratch) / LIBRARY_NAME
        command = [*compiler.split(), "-o", str(output), *units, *_COMPILE_FLAGS, "-ldl"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise ShimUnavailableError(f"{compiler} does not start: {error}") from error
        if done.returncode:
            first = (done.stderr.strip().splitlines() or ["no message"])[0]
            raise ShimUnavailableError(f"{compiler} failed: {first}")
        output.replace(path)  # atomic: other processes may build the library at the same time
    return path


def default_heap_pages(memory_pages: int) -> int:
    """The heap's size, in pages, on a machine with this number of pages of RAM."""
    return min(HEAP_PER_MEMORY * memory_pages, HEAP_PAGES_MAX)


def _heap_bytes() -> int:
    """The heap's size from SENTINELD_SHIM_HEAP_BYTES; 0 if this variable is not set."""
    text = os.environ.get(HEAP_VARIABLE, "0")
    try:
        heap_bytes = int(text)
    except ValueError:
        heap_bytes = -1
    if heap_bytes < 0:
        raise ShimUnavailableError(f"{HEAP_VARIABLE} is not a number of bytes: {text!r}")
    return heap_bytes


class _MethodDef(ctypes.Structure):
    """PyMethodDef, part of CPython's stable ABI."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


class PagingSettings(NamedTuple):
    """The arguments of sentinel_paging()."""

    file: int
    """Descriptor of the backing file; -1 if the pager already runs."""
    file_bytes: int
    file_bytes_max: int
    """Maximum size to which the pager enlarges the file."""
    wake: int
    """Eventfd to which the daemon writes after it has queued moves."""
    budget_pages: int = 0
    """Limit on the page frames; 0: keep the current limit, or set no limit for a new pager."""


class Native:
    """The loaded C library of the shim.

    The five attributes below are CPython built-in functions (python.c explains why). Each reports
    the event that its comment names. While the shim passes all allocations through to libc10, the
    functions do nothing. On a thread that does not own the step, only step_begin has an effect.
    """

    # A leaf module's forward begins.
    forward: Callable[[int], None]
    # A leaf module's forward has ended.
    forward_end: Callable[[], None]
    # optimizer.step() begins.
    optimizer: Callable[[], None]
    # The step has ended.
    step_end: Callable[[], None]
    # The next step begins; the calling thread becomes its owner.
    step_begin: Callable[[], None]

    def __init__(self, path: Path) -> None:
        """Load the library; torch must not be loaded yet.

        Raises:
            ShimUnavailableError: the library does not load or has another protocol version.
        """
        try:
            library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
            version = library.sentinel_version()
        except (OSError, AttributeError) as error:
            raise ShimUnavailableError(f"{path} does not load: {error}") from error
        if version != SHIM_VERSION:
            raise ShimUnavailableError(f"{path} has protocol {version}, not {SHIM_VERSION}")
        library.sentinel_start.argtypes = (ctypes.c_uint64,) * 3
        library.sentinel_layout.restype = ctypes.c_char_p
        library.sentinel_paging.restype = ctypes.c_char_p
        sizes = ctypes.c_uint64
        library.sentinel_paging.argtypes = (ctypes.c_int, sizes, sizes, ctypes.c_int, sizes)
        library.sentinel_placeable.argtypes = (ctypes.c_void_p,)
        library.sentinel_place.argtypes = (ctypes.c_void_p, ctypes.c_int)
        library.sentinel_placement_changes.restype = ctypes.c_uint64
        library.sentinel_placed.argtypes = (ctypes.c_void_p, ctypes.c_uint64)
        library.sentinel_placed.restype = ctypes.c_uint64
        library.sentinel_control_words.restype = ctypes.c_void_p
        library.sentinel_methods.restype = ctypes.c_void_p
        library.sentinel_none.argtypes = (ctypes.py_object,)
        library.sentinel_none(None)
        self._library = library
        self._methods = self._method_table()
        for name in ("forward", "forward_end", "optimizer", "step_end", "step_begin"):
            setattr(self, name, self._function(name, None))

    def _method_table(self) -> dict[str, int]:
        address = self._library.sentinel_methods()
        table = {}
        while name := _MethodDef.from_address(address).name:
            table[name.decode()] = address
            address += ctypes.sizeof(_MethodDef)
        return table

    def _function(self, name: str, bound: object) -> Any:
        make = ctypes.pythonapi.PyCFunction_NewEx
        make.restype = ctypes.py_object
        make.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.py_object)
        return make(self._methods[name], bound, None)

    def backward(self, layer: int) -> Callable[[object], None]:
        """Return a grad_fn prehook that reports the beginning of this layer's backward."""
        function: Callable[[object], None] = self._function("backward", layer)
        return function

    def start(self) -> None:
        """Reserve the heap and create the control segment.

        Raises:
            ShimUnavailableError: the kernel refused the memory, or SENTINELD_SHIM_HEAP_BYTES is
                not a number of bytes.
        """
        memory_pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        memory_bytes = memory_pages * page_bytes
        heap_bytes = _heap_bytes() or default_heap_pages(memory_pages) * page_bytes
        request_bytes_max = min(memory_bytes, heap_bytes)
        error = self._library.sentinel_start(heap_bytes, request_bytes_max, RING_RECORDS)
        if error:
            reason = os.strerror(-error)
            raise ShimUnavailableError(f"cannot reserve the shim's heap or shared memory: {reason}")

    def enable(self, on: bool) -> None:
        """Serve tensors from the heap (on=True), or pass all allocations through to libc10."""
        self._library.sentinel_enable(int(on))

    @property
    def control_fd(self) -> int:
        """The control segment's memfd."""
        return int(self._library.sentinel_control_fd())

    @property
    def event_fd(self) -> int:
        """The eventfd with which the shim wakes the daemon at the position that the daemon has
        asked for."""
        return int(self._library.sentinel_event_fd())

    @property
    def residency_fd(self) -> int:
        """The memfd with the residency map of emulated or paged tiers; -1: none."""
        return int(self._library.sentinel_residency_fd())

    def word(self, offset: int) -> int:
        """Return the 8-byte control word at this offset."""
        base = int(self._library.sentinel_control_words())
        return ctypes.c_uint64.from_address(base + offset).value

    def control_bytes(self, start: int, count: int) -> bytes:
        """Copy the control segment's bytes [start, start + count)."""
        base = int(self._library.sentinel_control_words())
        return ctypes.string_at(base + start, count)

    def connected(self, on: bool) -> None:
        """Set whether a daemon is connected. Without a daemon, nothing is recorded and no barrier
        waits."""
        self._library.sentinel_connected(int(on))

    def epoch_fd(self, fd: int) -> None:
        """Give the library ownership of the kernel module's epoch fd; -1: stop advancing epochs."""
        self._library.sentinel_epoch_fd(fd)

    def paging(self, settings: PagingSettings) -> str:
        """Start the pager, or give a running pager new settings; returns "" or the problem. The
        library takes ownership of the descriptors."""
        problem: bytes | None = self._library.sentinel_paging(*settings)
        return problem.decode() if problem else ""

    def layout(self, fd: int) -> str:
        """Use the layout in this memfd from the next step on; returns "" or the problem."""
        problem: bytes | None = self._library.sentinel_layout(fd)
        return problem.decode() if problem else ""

    def detach(self) -> None:
        """Stop using the layout: the heap serves all further tensors."""
        self._library.sentinel_detach()

    def placeable(self, address: int) -> bool:
        """Whether the address is that of a live tensor of the heap or an arena. Always true in a
        forked child, where place() has no effect."""
        return bool(self._library.sentinel_placeable(address))

    def place(self, address: int, placement: int) -> None:
        """Place the tensor at this address; placement: a protocol.Placement."""
        self._library.sentinel_place(address, placement)

    def placing(self, placement: int) -> int:
        """Set the placement of the calling thread's births; returns the former one."""
        return int(self._library.sentinel_placing(placement))

    @property
    def placement_changes(self) -> int:
        """Number of times that a heap tensor got another placement; see `changes` in place.c."""
        return int(self._library.sentinel_placement_changes())

    def placed(self, rows_max: int) -> list[tuple[int, int]]:
        """(address, protocol.Placement) of at most rows_max placed tensors of the heap, without
        those that were born in the current step."""
        rows = (ctypes.c_uint64 * (2 * rows_max))()
        count = int(self._library.sentinel_placed(rows, rows_max))
        return list(zip(rows[: 2 * count : 2], rows[1 : 2 * count : 2], strict=True))
