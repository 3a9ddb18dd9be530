# SPDX-License-Identifier: Apache-2.0
"""Swap on a disk or on zram, and settings for swap, each for the duration of a context."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sentineld.host.mounts import unescaped

VM = Path("/proc/sys/vm")
SETTINGS = ("page-cluster", "swappiness")
SWAPS = Path("/proc/swaps")
ZRAM_CONTROL = Path("/sys/class/zram-control")
BLOCK = Path("/sys/block")


@dataclass(frozen=True)
class SwapSettings:
    """Kernel settings for swap; see Documentation/admin-guide/sysctl/vm.rst."""

    page_cluster: int = 3  # log2 of the number of pages that one swap-in reads
    swappiness: int = 60

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Apply the settings while the context is active, then restore the old ones.

        Raises OSError.
        """
        wanted = dict(zip(SETTINGS, (self.page_cluster, self.swappiness), strict=True))
        before = {name: (VM / name).read_text() for name in wanted}
        try:
            for name, value in wanted.items():
                (VM / name).write_text(str(value))
            yield
        finally:
            for name, text in before.items():
                (VM / name).write_text(text)


def require_no_swap() -> None:
    """Raises RuntimeError if the machine uses swap, because the contestants set up their own."""
    if used := swap_files():
        names = ", ".join(map(str, used))
        raise RuntimeError(f"the machine swaps to {names}; run `swapoff -a` first")


def swap_files() -> list[Path]:
    """The files and devices that the machine swaps to."""
    lines = SWAPS.read_text().splitlines() if SWAPS.exists() else []
    return [Path(unescaped(line.split()[0])) for line in lines[1:]]


class Swap:
    """A file or device that the kernel swaps to."""

    def __init__(self, path: str) -> None:
        """Format the file or device with mkswap. Raises RuntimeError if mkswap fails."""
        self._path = path
        _run("mkswap", path)

    @contextmanager
    def on(self) -> Iterator[None]:
        """Swap to the file or device while the context is active. When the context ends, the kernel
        reads all swapped pages back."""
        _run("swapon", self._path)
        try:
            yield
        finally:
            _run("swapoff", self._path)


class SwapFile(Swap):
    """A swap file in a folder."""

    def __init__(self, folder: Path, size_bytes: int) -> None:
        """Raises OSError if the folder has no room for the file, RuntimeError if mkswap fails."""
        self._file = folder / "swapfile"
        with ExitStack() as undo:
            with open(os.open(self._file, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
                undo.callback(self.close)
                os.posix_fallocate(file.fileno(), 0, size_bytes)
            super().__init__(str(self._file))
            undo.pop_all()

    def close(self) -> None:
        """Remove the file."""
        self._file.unlink()


class SwapOnZram(Swap):
    """Swap on a new zram device with the compressor lz4."""

    def __init__(self, size_bytes: int) -> None:
        """Raises RuntimeError if no zram device can be set up."""
        with ExitStack() as undo:
            try:
                if not ZRAM_CONTROL.is_dir():
                    _run("modprobe", "zram")
                self._number = (ZRAM_CONTROL / "hot_add").read_text().strip()
                undo.callback(self.close)
                self._set("comp_algorithm", "lz4")
                self._set("disksize", str(size_bytes))
            except OSError as error:
                raise RuntimeError(f"no zram device can be set up: {error}") from None
            super().__init__(f"/dev/zram{self._number}")
            undo.pop_all()

    def close(self) -> None:
        """Remove the device."""
        (ZRAM_CONTROL / "hot_remove").write_text(self._number)

    def _set(self, name: str, value: str) -> None:
        (BLOCK / f"zram{self._number}" / name).write_text(value)


def _run(*command: str) -> None:
    try:
        # The child calls setsid(), so that Ctrl-C does not interrupt swapoff.
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, start_new_session=True
        )
    except FileNotFoundError:
        raise RuntimeError(f"{command[0]} is not installed: apt install util-linux kmod") from None
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
