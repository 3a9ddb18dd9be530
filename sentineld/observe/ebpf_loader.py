# SPDX-License-Identifier: Apache-2.0
"""Child process that compiles the eBPF programs and sends their fds to the daemon.

    python -m sentineld.observe.ebpf_loader RING_PAGES < SOCKET

bcc keeps over 100 MiB of memory after compiling, so it runs in this short-lived process.
RING_PAGES is the size, in pages, of the ring of fault records. Standard input is a SOCK_SEQPACKET
socket, on which this child process sends one JSON message to the daemon. If the programs were
loaded, it sends the message that load() returns. This message names the maps and programs, and
their fds are sent with it in the same order (SCM_RIGHTS). If loading failed, the message has the
error's code, text and hint.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sentineld.base.errors import SentinelError
from sentineld.model.kernel_events import MAP_VALUE_BYTES, PROGRAMS, TRACED
from sentineld.observe import bpfmap
from sentineld.observe.btf import Btf
from sentineld.observe.ebpf_kernel import (
    MigrateFormat,
    layout_of,
    migrate_format,
    parse_migrate_format,
)

SOURCES = ("sentinel.h", "faults.c", "disturbances.c", "migrations.c", "accesses.c")

BPF_DIRECTORY = Path(__file__).resolve().parents[2] / "bpf"
"""The folder of the programs' source. It is next to the package, both in the source tree and in an
installation."""


def program_text() -> str:
    """Join the programs into a text for bcc. Raises SentinelError "failed" if a file is missing."""
    try:
        return "\n".join((BPF_DIRECTORY / name).read_text() for name in SOURCES)
    except OSError as error:
        raise SentinelError(
            "failed", f"the eBPF programs are not installed: {error}", "make install"
        ) from error


def check_kernel_headers() -> None:
    """Raise SentinelError "no-kernel-headers" if the kernel's headers are missing.

    bcc's own error would be unclear.
    """
    release = os.uname().release
    override = os.environ.get("BCC_KERNEL_SOURCE")
    if override:
        roots = [Path(override)]
    else:
        modules = Path("/lib/modules") / release
        roots = [modules / "build", modules / "source"]
        if Path("/sys/kernel/kheaders.tar.xz").exists():
            return
    if not any((root / "include/linux").is_dir() for root in roots):
        raise SentinelError(
            "no-kernel-headers",
            f"no kernel headers for {release} in {roots[0]}",
            f"install linux-headers-{release} or set BCC_KERNEL_SOURCE",
        )


def check_permitted() -> None:
    """Check that the kernel loads a tracing program for this process. Raises SentinelError
    "not-permitted" if this process has no permission, or "failed" if the kernel refuses the program
    for another reason."""
    try:
        bpfmap.check_permitted()
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EACCES):
            raise SentinelError(
                "failed", f"the kernel refuses eBPF programs: {os.strerror(error.errno or 0)}"
            ) from error
        raise SentinelError(
            "not-permitted",
            "no permission to load eBPF programs",
            "run with CAP_BPF and CAP_PERFMON",
        ) from error


def import_bcc() -> Any:
    """Import the distribution's bcc. Raises SentinelError "bcc-missing" if it cannot be imported,
    or if the package named bcc is another project."""
    hint = "install the distribution's package python3-bpfcc; bcc on PyPI is another project"
    try:
        bcc = importlib.import_module("bcc")
    except (ImportError, OSError) as error:
        raise SentinelError("bcc-missing", f"bcc cannot be imported: {error}", hint) from error
    if not hasattr(bcc, "BPF"):
        raise SentinelError("bcc-missing", f"{bcc.__file__} is not the BPF compiler", hint)
    return bcc


def load(ring_pages: int) -> tuple[dict[str, Any], list[int]]:
    """Compile and load the programs; return the message for the parent, and the fds of the maps and
    programs.

    ring_pages: size of the ring of fault records.

    Leaves out optional programs that cannot work here; the message's notes list the events that
    are therefore not observed.
    Raises SentinelError if a requirement is missing or bcc fails.
    """
    check_permitted()
    check_kernel_headers()
    bcc = import_bcc()
    text = program_text()
    programs = dict(PROGRAMS)
    layout = layout_of(Btf.of_kernel())
    notes = list(layout.notes)
    if not layout.functions:
        del programs["mm_collapse_huge_page"]
    described = migrate_format()
    migrate = None if described is None else parse_migrate_format(described)
    if migrate is None:
        migrate = MigrateFormat()
        del programs["mm_migrate_pages"], programs["mm_migrate_pages_start"]
        notes.append(
            "page migrations are not counted: "
            + (
                "tracefs is not readable"
                if described is None
                else "the tracepoint mm_migrate_pages lacks the field mode or reason"
            )
        )
    defines = {
        **layout.defines,
        "FAULT_RING_PAGES": ring_pages,
        "MIGRATE_MODE_ARG": migrate.mode_argument,
        "MIGRATE_REASON_ARG": migrate.reason_argument,
        "MIGRATE_SYSCALL": migrate.syscall_reason,
        "DAEMON_PID": os.getppid(),
    }
    flags = ["-Wno-everything", *(f"-D{name}={value}" for name, value in defines.items())]
    try:
        bpf = bcc.BPF(text=text, cflags=flags)
        loaded = {
            tracepoint: bpf.load_func(function, bcc.BPF.RAW_TRACEPOINT).fd
            for tracepoint, function in programs.items()
        }
        maps = {name: bpf[name].map_fd for name in MAP_VALUE_BYTES}
    except Exception as error:  # bcc raises plain Exception for clang's and the kernel's errors
        raise SentinelError("failed", f"bcc cannot load the eBPF programs: {error}") from error
    for traced in TRACED:
        number = layout.functions.get(traced.function)
        if number is None:
            continue
        try:
            loaded[traced.function] = bpfmap.load_traced(
                bpf.dump_func(traced.program), number, traced.returns
            )
        except OSError as error:
            why = os.strerror(error.errno or 0)
            notes.append(
                f"not observed: {traced.observes}: {traced.function} can't be traced: {why}"
            )
    message = {
        "maps": list(maps),
        "programs": list(loaded),
        "ring_bytes": ring_pages * os.sysconf("SC_PAGE_SIZE"),
        "modes": migrate.modes,
        "reasons": migrate.reasons,
        "notes": notes,
    }
    return message, [*maps.values(), *loaded.values()]


@contextlib.contextmanager
def _reported_to(parent: socket.socket) -> Iterator[None]:
    """Report an error: if the with block raises a SentinelError, the parent gets this error
    instead of the fds."""
    try:
        yield
    except SentinelError as error:
        text = {"code": error.code, "message": error.message, "hint": error.hint}
        parent.send(json.dumps({"error": text}).encode())


def main() -> None:
    """Load the programs and send their fds to the parent, which attaches the programs."""
    parent = socket.socket(fileno=os.dup(0))
    with parent, _reported_to(parent):
        message, fds = load(int(sys.argv[1]))
        socket.send_fds(parent, [json.dumps(message).encode()], fds)


if __name__ == "__main__":
    main()
