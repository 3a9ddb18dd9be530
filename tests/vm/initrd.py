# SPDX-License-Identifier: Apache-2.0
"""A minimal initrd that mounts the root disk: busybox, a few modules, one script."""

from __future__ import annotations

import lzma
import stat
import subprocess
from pathlib import Path

from . import recipe
from .host import MachineError

APPLETS = ("sh", "mount", "insmod", "ip", "switch_root")
FOLDERS = ("bin", "dev", "modules", "root")


def make_initrd(root: Path, release: str) -> bytes:
    """An uncompressed cpio archive for kernel RELEASE, from the files of the root tree ROOT."""
    modules = _modules_in_order(root, release)
    order = "".join(f"{path.name.removesuffix('.xz')}\n" for path in modules)
    entries = [_entry(name, stat.S_IFDIR | 0o755, b"") for name in FOLDERS]
    entries.append(_entry("init", stat.S_IFREG | 0o755, recipe.INIT_SCRIPT.encode()))
    entries.append(_entry("modules/order", stat.S_IFREG | 0o644, order.encode()))
    entries.append(
        _entry("bin/busybox", stat.S_IFREG | 0o755, (root / "usr/bin/busybox").read_bytes())
    )
    entries += [_entry(f"bin/{name}", stat.S_IFLNK | 0o777, b"busybox") for name in APPLETS]
    for path in modules:
        data = path.read_bytes()
        if path.suffix == ".xz":
            data = lzma.decompress(data)
        name = path.name.removesuffix(".xz")
        entries.append(_entry(f"modules/{name}", stat.S_IFREG | 0o644, data))
    entries.append(_entry("TRAILER!!!", 0, b""))
    return b"".join(entries)


def _modules_in_order(root: Path, release: str) -> list[Path]:
    """The module files in load order: each after its dependencies."""
    found: dict[Path, None] = {}
    for module in recipe.INITRD_MODULES:
        command = ["chroot", str(root), "modprobe", "-S", release, "--show-depends", module]
        # A failure is ignored: newer kernels have no module crc32c_generic, the checksum that ext4
        # uses. A missing module for the disk is noticed anyway, because no guest would boot.
        listing = subprocess.run(command, check=False, capture_output=True, text=True).stdout
        for line in listing.splitlines():
            verb, _, rest = line.partition(" ")
            if verb == "insmod":
                found[root / rest.split()[0].lstrip("/")] = None
    if not found:
        raise MachineError(f"kernel {release} has none of {recipe.INITRD_MODULES} as modules")
    return list(found)


def _entry(name: str, mode: int, data: bytes) -> bytes:
    """One member in cpio's "newc" format: 13 hex fields, name and data padded to 4 bytes."""
    encoded = name.encode() + b"\0"
    links = 2 if stat.S_ISDIR(mode) else 1
    fields = (0, mode, 0, 0, links, 0, len(data), 0, 0, 0, 0, len(encoded), 0)
    header = b"070701" + b"".join(b"%08X" % field for field in fields)
    head = header + encoded
    head += b"\0" * (-len(head) % 4)
    return head + data + b"\0" * (-len(data) % 4)
