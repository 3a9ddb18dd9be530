# SPDX-License-Identifier: Apache-2.0
"""The C object: found or built, loaded in front of torch, and its calls."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

SHIM_VERSION = 3
LIBRARY_NAME = "libsentinelshim.so"
LIBRARY_VARIABLE = "SENTINELD_SHIM_LIBRARY"
HEAP_VARIABLE = "SENTINELD_SHIM_HEAP_BYTES"
RING_RECORDS = 131072
HEAP_PER_MEMORY = 2
"""Address space of the heap per byte of memory: room for fragments; untouched, it costs nothing."""

_SOURCES = Path(__file__).parent / "native"
_COMPILE_FLAGS = (
    *("-O2", "-g", "-std=gnu11", "-fPIC", "-fvisibility=hidden", "-fexceptions", "-pthread"),
    *("-shared", "-Wl,-z,lazy", f"-Wl,-soname,{LIBRARY_NAME}"),
)
"""Those of native/Makefile, which says why."""


class ShimUnavailableError(Exception):
    """The shim cannot work here; training goes on without it. The text says why."""


def library_path() -> Path:
    """The C object's path: named by the environment, installed beside us, or built now.

    Raises:
        ShimUnavailableError: there is none and it cannot be built.
    """
    named = os.environ.get(LIBRARY_VARIABLE)
    if named:
        return Path(named)
    packaged = Path(__file__).parent / LIBRARY_NAME
    sources = sorted(_SOURCES.glob("*.[ch]"))
    if packaged.exists():
        built = packaged.stat().st_mtime
        if all(source.stat().st_mtime <= built for source in sources):
            return packaged
    try:
        return _build(sources)
    except ShimUnavailableError:
        if packaged.exists():
            return packaged  # copied around, so its age says little; its version is checked
        raise


def _cache_directory() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    path = Path(root) / "sentineld"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.stat().st_uid == os.getuid() and os.access(path, os.W_OK):
            return path
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="sentineld-"))


def _build(sources: list[Path]) -> Path:
    if not sources:
        raise ShimUnavailableError(f"{LIBRARY_NAME} is not installed, nor are its sources")
    digest = hashlib.sha256(" ".join([platform.machine(), *_COMPILE_FLAGS]).encode())
    for source in sources:
        digest.update(source.read_bytes())
    directory = _cache_directory()
    path = directory / f"{digest.hexdigest()[:16]}-{LIBRARY_NAME}"
    if path.exists():
        return path
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        raise ShimUnavailableError("there is no C compiler to build it with (install gcc)")
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
        output.replace(path)  # whole or not at all, whoever else builds it now
    return path


class _MethodDef(ctypes.Structure):
    """PyMethodDef, part of CPython's stable ABI."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


class Native:
    """The loaded C object.

    forward(layer), forward_end(), optimizer(), step_end() and step_begin() are built-in
    functions (python.c says why); they do nothing in passthrough and on other threads.
    """

    forward: Callable[[int], None]
    forward_end: Callable[[], None]
    optimizer: Callable[[], None]
    step_end: Callable[[], None]
    step_begin: Callable[[], None]

    def __init__(self, path: Path) -> None:
        """Load the object in front of torch, which must not be loaded yet.

        Raises:
            ShimUnavailableError: it does not load or has another protocol version.
        """
        try:
            library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
            version = library.sentinel_version()
        except (OSError, AttributeError) as error:
            raise ShimUnavailableError(f"{path} does not load: {error}") from error
        if version != SHIM_VERSION:
            raise ShimUnavailableError(f"{path} speaks protocol {version}, not {SHIM_VERSION}")
        library.sentinel_start.argtypes = (ctypes.c_uint64,) * 3
        library.sentinel_layout.restype = ctypes.c_char_p
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
        """A grad_fn prehook for this layer's backward begin."""
        function: Callable[[object], None] = self._function("backward", layer)
        return function

    def start(self) -> None:
        """Reserve the heap and make the control segment.

        Raises:
            ShimUnavailableError: the kernel refuses.
        """
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        heap_bytes = int(os.environ.get(HEAP_VARIABLE, 0)) or HEAP_PER_MEMORY * pages
        error = self._library.sentinel_start(heap_bytes, min(pages, heap_bytes), RING_RECORDS)
        if error:
            reason = os.strerror(-error)
            raise ShimUnavailableError(f"no room for its heap or its shared memory: {reason}")

    def enable(self, on: bool) -> None:
        """Serve tensors from the heap, or pass everything through."""
        self._library.sentinel_enable(int(on))

    @property
    def control_fd(self) -> int:
        """The control segment's memfd."""
        return int(self._library.sentinel_control_fd())

    @property
    def event_fd(self) -> int:
        """The eventfd that boundaries write when the daemon sleeps."""
        return int(self._library.sentinel_event_fd())

    @property
    def residency_fd(self) -> int:
        """The memfd that says where pages are on emulated tiers; -1: none are emulated."""
        return int(self._library.sentinel_residency_fd())

    def word(self, offset: int) -> int:
        """The 8-byte control word at this offset."""
        base = int(self._library.sentinel_control_words())
        return ctypes.c_uint64.from_address(base + offset).value

    def control_bytes(self, start: int, count: int) -> bytes:
        """A copy of the control segment's bytes [start, start + count)."""
        base = int(self._library.sentinel_control_words())
        return ctypes.string_at(base + start, count)

    def connected(self, on: bool) -> None:
        """Say whether a daemon listens; without one nothing is recorded or waited for."""
        self._library.sentinel_connected(int(on))

    def epoch_fd(self, fd: int) -> None:
        """Hand the module's epoch fd over (-1: none)."""
        self._library.sentinel_epoch_fd(fd)

    def layout(self, fd: int) -> str:
        """Make the layout in this memfd live from the next step; "" or what is wrong with it."""
        problem: bytes | None = self._library.sentinel_layout(fd)
        return problem.decode() if problem else ""

    def detach(self) -> None:
        """Serve all further tensors from the heap."""
        self._library.sentinel_detach()
