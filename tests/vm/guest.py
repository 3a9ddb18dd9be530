# SPDX-License-Identifier: Apache-2.0
"""Boots and drives one guest.

    with Guest() as guest:
        guest.put_tree()
        print(guest.run("uname -r").stdout)
        guest.check_kernel_log()

Guests can run in parallel: each has its own port, overlay and kernel log. A
guest is killed when the process that started it ends.
"""

from __future__ import annotations

import http.client
import io
import shlex
import shutil
import subprocess
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType

from tests.ports import free_port

from . import kernel_log
from .accel import choose_accelerator
from .host import (
    REPOSITORY,
    MachineError,
    make_work_folder,
    require_ready,
    say,
    spawn_with_parent,
)
from .image import Image, ensure_image
from .qemu import SLOWEST_NODE, Hardware, Variant, command_line
from .rootfs import BUILD_PLACE, TREE, build_artifacts, in_root
from .ssh import Command, Connection, GuestProcess

LINES_BEFORE = 3
"""Number of lines of the kernel log that an error quotes before the first problem."""

LINES_SHOWN = 60

START_ATTEMPTS = 5
"""Attempts to start QEMU: another process may take the free port before QEMU binds it."""

BOOT_ATTEMPTS = 3

WRITE_MARKS = 'while read -r mark; do echo "$mark" > /dev/kmsg; done'
"""Writes each line of its input into the kernel log. One process does this for all marks, because
each command that an emulated guest starts takes half a second of CPU time."""

MARK_SECONDS = 300.0
"""Time within which a mark must appear in the log. Under emulation, a busy guest can be slow."""

COMPILED = ("sentineld/", "tests/vm/")
"""Folders whose Python modules put_tree() compiles."""

THREE_TIER_SETUP = f"""
set -e
modprobe -a nfit nd_pmem
udevadm settle
ndctl create-namespace -f -e namespace0.0 -m devdax -M mem
modprobe -a device_dax kmem
echo offline > /sys/devices/system/memory/auto_online_blocks
daxctl reconfigure-device --mode=system-ram --human dax0.0
awk '/MemTotal/ {{exit $4 == 0}}' /sys/devices/system/node/node{SLOWEST_NODE}/meminfo
"""
"""Turns the guest's NVDIMM into system memory of a separate node, as on machines with Optane."""


class EmulatorError(MachineError):
    """The guest crashed because of a known bug of QEMU: see kernel_log.hit_stale_breakpoint()."""


class Guest:
    """One machine with memory tiers, running from `__enter__` to `__exit__`.

    variant: "two-tier" (node 0 is fast, node 1 is slow) or "three-tier" (also with node 2,
        which is persistent memory and the slowest).
    plugin: argument of QEMU's -plugin (PATH[,NAME=VALUE...]); forces TCG. The
        plugin's output is in `plugin_log`.
    tcg_thread: "single" runs all CPUs in one thread, "multi" one thread per CPU. Only
        "single" correctly emulates code that is patched at run time.
    icount: run in one thread, and let one instruction take one nanosecond of
        guest time; forces TCG.
    extra: further arguments for QEMU.
    """

    def __init__(
        self,
        variant: Variant = "two-tier",
        *,
        fast_mib: int = 2048,
        slow_mib: int = 1024,
        slowest_mib: int = 1024,
        cpus: int = 2,
        plugin: str | Path | None = None,
        tcg_thread: str = "multi",
        icount: bool = False,
        extra: tuple[str, ...] = (),
        boot_seconds: float = 600.0,
        image: Image | None = None,
    ) -> None:
        if tcg_thread not in ("multi", "single"):
            raise ValueError(f"tcg_thread is multi or single, not {tcg_thread!r}")
        self._hardware = Hardware(
            variant=variant,
            fast_mib=fast_mib,
            slow_mib=slow_mib,
            slowest_mib=slowest_mib,
            cpus=cpus,
            tcg_thread="single" if icount or tcg_thread == "single" else "multi",
            icount=icount,
            plugin=None if plugin is None else str(plugin),
            extra=extra,
        )
        self._boot_seconds = boot_seconds
        self._image = image
        self._work: Path | None = None
        self._qemu: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._marks: kernel_log.Marks | None = None
        self._log_checked = 0
        self.accelerator = ""
        self.port = 0

    def __enter__(self) -> Guest:
        self.boot()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- start and end ---------------------------------------------------------------

    def boot(self) -> None:
        """Boot and wait until root can log in. Raises MachineError if that fails.

        Boots again after an EmulatorError, up to BOOT_ATTEMPTS boots in all.
        """
        require_ready()
        image = self._image = self._image or ensure_image()
        self._choose_accelerator(image)
        for _ in range(BOOT_ATTEMPTS - 1):
            try:
                return self._boot_once(image)
            except EmulatorError as error:
                say(f"booting again: {error}")
        self._boot_once(image)

    def _boot_once(self, image: Image) -> None:
        self._work = make_work_folder()
        try:
            start = time.monotonic()
            self._start_qemu(image)
            self._connect(image, start + self._boot_seconds)
            if self._hardware.variant == "three-tier":
                self.run(THREE_TIER_SETUP, timeout=300)
            say(f"guest up on port {self.port} after {time.monotonic() - start:.1f} s")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Kill the guest. All changes to its disk are lost."""
        if self._marks is not None:
            self._marks.close()
            self._marks = None
        if self._connection is not None:
            self._connection.close()
        if self._qemu is not None:
            self._qemu.kill()
            self._qemu.wait()
        if self._work is not None:
            shutil.rmtree(self._work, ignore_errors=True)
            self._work = None

    def _choose_accelerator(self, image: Image) -> None:
        if self._hardware.plugin:
            accelerator, reason = "tcg", "QEMU plugins require it"
        elif self._hardware.icount:
            accelerator, reason = "tcg", "counting instructions requires it"
        else:
            accelerator, reason = choose_accelerator(image)
        say(f"accelerator: {accelerator} ({reason})")
        self.accelerator = accelerator
        fields = {**vars(self._hardware), "accelerator": accelerator}
        self._hardware = Hardware(**fields)

    def _start_qemu(self, image: Image) -> None:
        assert self._work is not None
        for _ in range(START_ATTEMPTS):
            self.port = free_port()
            self.log_path.write_bytes(b"")
            command = command_line(image, self._hardware, self.port, self._work, self.log_path)
            self._qemu = spawn_with_parent(command, self._work / "qemu.log")
            time.sleep(0.5)
            if self._qemu.poll() is None:
                return
            if "host forwarding" not in self._qemu_output():
                break
        raise MachineError(f"QEMU did not start: {self._qemu_output()}")

    def _connect(self, image: Image, deadline: float) -> None:
        assert self._qemu is not None
        assert self._work is not None
        connection = Connection(image, self.port, self._work)
        while not connection.answers():
            if self._qemu.poll() is not None:
                self._raise_if_emulator_bug()
                raise MachineError(f"QEMU ended while booting: {self._log_tail()}")
            if time.monotonic() > deadline:
                raise MachineError(f"no ssh after {self._boot_seconds:.0f} s: {self._log_tail()}")
            time.sleep(0.3)
        connection.open(deadline)
        self._connection = connection
        self._marks = kernel_log.Marks(connection.argv(WRITE_MARKS), self.kernel_log)

    def _raise_if_emulator_bug(self, error: MachineError | None = None) -> None:
        """Raise EmulatorError if the kernel crashed because of the known bug of QEMU."""
        if self.accelerator == "tcg" and kernel_log.hit_stale_breakpoint(self.kernel_log()):
            what = "the kernel hit a removed breakpoint, a known bug of QEMU; try again"
            raise EmulatorError(what) from error

    def _qemu_output(self) -> str:
        assert self._work is not None
        return (self._work / "qemu.log").read_text(errors="replace").strip()

    def _log_tail(self) -> str:
        tail = self.kernel_log().splitlines()[-8:]
        return "\n".join([self._qemu_output(), *tail]).strip()

    # -- commands -----------------------------------------------------------

    @property
    def connection(self) -> Connection:
        """The ssh connection of the running guest."""
        if self._connection is None:
            raise MachineError("the guest is not running")
        return self._connection

    def run(
        self,
        command: Command,
        timeout: float = 300.0,
        check: bool = True,
        stdin: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a bash line or an argv as root and wait; see Connection.run."""
        try:
            return self.connection.run(command, timeout, check, stdin)
        except MachineError as error:
            self._raise_if_emulator_bug(error)
            raise

    def start(self, command: Command) -> GuestProcess:
        """Start a command without waiting for it; read its output from `.stdout`."""
        return self.connection.start(command)

    def http_get(self, port: int, path: str, timeout: float = 60.0) -> str:
        """The response body of an HTTP server that listens on PORT of 127.0.0.1 in the guest.

        This starts no process in the guest: under emulation, starting curl takes a second of CPU
        time. Raises MachineError if the server does not respond, or responds with an error.
        """
        url = f"http://127.0.0.1:{self.connection.forwarded(port)}{path}"
        try:
            with urllib.request.urlopen(url, timeout=timeout) as response:
                body: bytes = response.read()
        except (OSError, http.client.HTTPException) as error:
            detail = error.read() if isinstance(error, urllib.error.HTTPError) else b""
            raise MachineError(f"port {port}, {path}: {error} {detail.decode()}") from error
        return body.decode()

    # -- files --------------------------------------------------------------

    def put(self, local: str | Path, remote: str) -> None:
        """Copy a file or a folder to the path REMOTE; creates parent folders."""
        archive = io.BytesIO()
        name = Path(remote).name
        with tarfile.open(fileobj=archive, mode="w") as tar:
            tar.add(local, arcname=name, filter=_as_root)
        self._unpack(archive.getvalue(), str(Path(remote).parent))

    def put_tree(self) -> None:
        """Replace TREE with the repository's files, except those that git ignores.

        Adds bytecode for the packages that guests run, because an emulated guest would need
        seconds of CPU time to compile these packages.
        """
        listing = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=REPOSITORY,
            check=True,
            capture_output=True,
            text=True,
        )
        # a tracked file may be missing in the working tree
        names = [
            name for name in listing.stdout.split("\0") if name and (REPOSITORY / name).exists()
        ]
        archive = io.BytesIO()
        with (
            tarfile.open(fileobj=archive, mode="w") as tar,
            tempfile.TemporaryDirectory() as folder,
        ):
            stage = Path(folder)
            for name in sorted(set(names)):
                tar.add(REPOSITORY / name, arcname=name, recursive=False, filter=_as_root)
                if name.endswith(".py") and name.startswith(COMPILED):
                    (stage / name).parent.mkdir(parents=True, exist_ok=True)
                    # copy2() keeps the file's mtime, which the bytecode contains.
                    shutil.copy2(REPOSITORY / name, stage / name)
            compile_all = f"python3 -m compileall -q -s {BUILD_PLACE} -p {TREE} {BUILD_PLACE}"
            in_root(compile_all, {stage: BUILD_PLACE}, image=self._image)
            for path in sorted(stage.rglob("*.pyc")):
                tar.add(path, arcname=str(path.relative_to(stage)), filter=_as_root)
        self.run(f"rm -rf {TREE}")
        self._unpack(archive.getvalue(), TREE)

    def put_artifacts(self) -> None:
        """Build the C parts natively and copy them to the paths in TREE where make puts them."""
        assert self._image is not None
        for place, built in build_artifacts(image=self._image).items():
            self.put(built, f"{TREE}/{place}")

    def get(self, remote: str, local: str | Path) -> None:
        """Copy the file REMOTE to the local path LOCAL; creates parent folders."""
        target = Path(local)
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as output:
            result = subprocess.run(
                self.connection.argv(f"cat -- {shlex.quote(remote)}"),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.PIPE,
            )
        if result.returncode != 0:
            target.unlink()
            raise MachineError(f"cannot read {remote}: {result.stderr.decode().strip()}")

    def _unpack(self, archive: bytes, folder: str) -> None:
        where = shlex.quote(folder)
        result = subprocess.run(
            self.connection.argv(f"mkdir -p {where} && tar -x -C {where}"),
            input=archive,
            capture_output=True,
        )
        if result.returncode != 0:
            raise MachineError(f"cannot write {folder}: {result.stderr.decode().strip()}")

    # -- logs ---------------------------------------------------------------

    @property
    def log_path(self) -> Path:
        """The file with the kernel log; deleted by close()."""
        assert self._work is not None
        return self._work / "kernel.log"

    @property
    def plugin_log(self) -> Path:
        """The file with the QEMU plugin's output; deleted by close()."""
        assert self._work is not None
        return self._work / "plugin.log"

    def kernel_log(self) -> str:
        """The kernel log since power-on, from the serial line."""
        return self.log_path.read_text(errors="replace").replace("\r", "")

    def kernel_problems(self) -> list[str]:
        """The lines of the kernel log that report a problem (kernel_log.PROBLEM)."""
        return kernel_log.problems(self.kernel_log())

    def check_kernel_log(self) -> None:
        """Raise MachineError with an excerpt if the log has a new problem since the last check, or
        if QEMU runs but the log cannot be read to its end.

        The log lags behind the kernel, so this function writes a mark (see kernel_log.Marks) and
        waits until it is in the log. Otherwise, a problem that one test causes could fail the next.
        """
        assert self._marks is not None
        assert self._qemu is not None
        complete = self._marks.arrives(MARK_SECONDS)
        log = self.kernel_log()
        start, self._log_checked = self._log_checked, len(log)
        if found := kernel_log.problems(log[start:]):
            lines = log[start:].splitlines()
            first = max(0, lines.index(found[0]) - LINES_BEFORE)
            excerpt = "\n".join(lines[first : first + LINES_SHOWN])
            raise MachineError(f"the kernel log has problems:\n{excerpt}")
        if not complete and self._qemu.poll() is None:
            raise MachineError(
                f"the kernel log may be incomplete: no mark arrived within {MARK_SECONDS:.0f} s, "
                f"or ssh failed:\n{self._log_tail()}"
            )


def _as_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry
