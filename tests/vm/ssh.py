# SPDX-License-Identifier: Apache-2.0
"""Runs commands in a guest over one shared connection of the OpenSSH client.

Under emulation a key exchange takes seconds, so all commands are channels of one
master connection.
"""

from __future__ import annotations

import math
import shlex
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.ports import free_port

from .host import MachineError, spawn_with_parent
from .image import Image
from .recipe import HOSTNAME

Command = str | Sequence[str]

TIMED_OUT_STATUS = 124
"""Exit status of coreutils' timeout after it stopped the command."""


class GuestProcess(subprocess.Popen[str]):
    """A command running in the guest; `.stdout` is its stdout and stderr as one text stream.

    Ending the local process does not end the process in the guest: use `send_remote`.
    """

    remote_pid: int  # process id in the guest
    _connection: Connection

    def send_remote(self, signal: str = "TERM") -> None:
        """Send SIGNAL (a name without SIG) to the process in the guest."""
        self._connection.run(f"kill -s {signal} {self.remote_pid}", timeout=60, check=False)


class Connection:
    """The master connection to one guest, as root."""

    def __init__(self, image: Image, port: int, work: Path) -> None:
        self._control = work / "ssh"
        self._log = work / "ssh.log"
        self.options = (
            *("-F", "none", "-p", str(port), "-l", "root", "-i", str(image.key)),
            *("-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR"),
            *("-o", f"HostKeyAlias={HOSTNAME}", "-o", "StrictHostKeyChecking=yes"),
            *("-o", f"UserKnownHostsFile={image.known_hosts}"),
            *("-o", "ServerAliveInterval=60", "-o", "ServerAliveCountMax=10"),
            # Fast algorithms: cryptography is slow under emulation, and the traffic is local.
            *("-o", "Compression=no", "-o", "KexAlgorithms=curve25519-sha256"),
            *("-o", f"ControlPath={self._control}", "-o", "ConnectTimeout=60"),
        )
        self._port = port
        self._master: subprocess.Popen[bytes] | None = None
        self._forwarded: dict[int, int] = {}  # port in the guest -> port of this machine

    def open(self, deadline: float) -> None:
        """Open the master connection; the guest's sshd must be running.

        Raises MachineError if the ssh process ends, or if the connection is not open when
        time.monotonic() reaches DEADLINE.
        """
        command = ["ssh", *self.options, "-o", "ControlMaster=yes", "-N", "127.0.0.1"]
        self._master = spawn_with_parent(command, self._log)
        while not self._control.exists():
            if self._master.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise MachineError(f"no ssh connection: {self._log.read_text().strip()}")
            time.sleep(0.05)

    def close(self) -> None:
        """Close the master connection, which ends the local process of every command."""
        if self._master is not None:
            self._master.terminate()
            self._master.wait()
            self._master = None

    def forwarded(self, port: int) -> int:
        """The local port of 127.0.0.1 that is forwarded to PORT of 127.0.0.1 in the guest."""
        if port not in self._forwarded:
            local = free_port()
            forward = ("-O", "forward", "-L", f"127.0.0.1:{local}:127.0.0.1:{port}")
            subprocess.run(
                ["ssh", *self.options, *forward, "127.0.0.1"], check=True, capture_output=True
            )
            self._forwarded[port] = local
        return self._forwarded[port]

    def argv(self, command: str, *options: str) -> list[str]:
        """The local command that runs COMMAND in a shell of the guest."""
        return ["ssh", *self.options, *options, "127.0.0.1", command]

    def run(
        self,
        command: Command,
        timeout: float = 300.0,
        check: bool = True,
        stdin: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run COMMAND (a bash line or an argv) in the guest and wait for it.

        timeout: seconds after which the command is stopped, also in the guest, and
            subprocess.TimeoutExpired is raised.
        check: raise MachineError with the output if the status is not 0.
        """
        line = command if isinstance(command, str) else shlex.join(command)
        limit = math.ceil(timeout)
        remote = f"exec timeout -k 10 {limit} bash -c {shlex.quote(line)}"
        start = time.monotonic()
        result = subprocess.run(
            self.argv(remote),
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit + 60,
        )
        if result.returncode == TIMED_OUT_STATUS and time.monotonic() - start >= limit:
            raise subprocess.TimeoutExpired(line, timeout, result.stdout, result.stderr)
        if check and result.returncode != 0:
            output = (result.stdout + result.stderr).strip()
            raise MachineError(f"`{line}` ended with status {result.returncode}:\n{output}")
        return result

    def start(self, command: Command) -> GuestProcess:
        """Start COMMAND in the guest; the caller reads its output from `.stdout` line by line."""
        line = command if isinstance(command, str) else shlex.join(command)
        remote = f"echo $$; exec bash -c {shlex.quote(line)} 2>&1"
        process = GuestProcess(
            self.argv(remote),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            bufsize=1,
        )
        assert process.stdout is not None
        first = process.stdout.readline().strip()
        if not first.isdigit():
            process.kill()
            rest, _ = process.communicate()
            raise MachineError(f"cannot start `{line}`: {first}{rest}")
        process.remote_pid = int(first)
        process._connection = self
        return process

    def answers(self, timeout: float = 2.0) -> bool:
        """Whether the guest's sshd responds. QEMU accepts connections even before sshd runs."""
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout) as probe:
                probe.settimeout(timeout)
                return probe.recv(4) == b"SSH-"
        except OSError:
            return False
