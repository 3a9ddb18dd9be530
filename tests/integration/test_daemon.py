# SPDX-License-Identifier: Apache-2.0
"""The real daemon and CLI on this machine, without a second tier or the kernel module.

Tests that need a second tier or the module run in the guest (tests/vm). The tests in this file
check that every refused command prints one line, exits with the status of its error code and leaves
the daemon's state unchanged.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import pytest

from sentineld.base.errors import EXIT_STATUS, SentinelError
from sentineld.control.client import request
from tests.sentinelctl import SENTINELCTL, refused

PATIENCE_S = 600
"""Time limit for each command and for each wait. It is long, because making a plan takes minutes on
a busy machine."""


class Daemon:
    """A private daemon with its files in `folder`.

    Its planning processes have the same priority as the training. At a low priority, planning would
    take longer on busy CPUs, and the training would spend the CPU time on steps without a plan.

    As a context manager, it is stopped at the end of the context.

    options: command-line options. wrapper: a command that execs the daemon. config: further lines
    of its configuration.
    """

    def __init__(
        self, folder: Path, *options: str, wrapper: Sequence[str] = (), config: str = ""
    ) -> None:
        self.folder = folder
        self.control = folder / "control.sock"
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.metrics_port = probe.getsockname()[1]
        file = folder / "config.toml"
        file.write_text(
            f'shim_socket = "{folder}/shim.sock"\n'
            f'control_socket = "{self.control}"\n'
            f'state_dir = "{folder}/state"\n'
            f"metrics_port = {self.metrics_port}\n"
            'ebpf = "off"\n'
            "plan_nice = 0\n"
            f"{config}"
        )
        self.process = subprocess.Popen(
            [*wrapper, sys.executable, "-m", "sentineld.daemon", "--config", str(file), *options],
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            self._wait_for_answer()
        except BaseException:
            self.process.kill()
            self.process.communicate()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _wait_for_answer(self) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while self.sessions() is None:
            assert self.process.poll() is None, self.process.stderr and self.process.stderr.read()
            assert time.monotonic() < deadline_s, "the daemon did not answer"
            time.sleep(0.05)

    def ctl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return ctl(self.control, *arguments)

    def sessions(self) -> list[dict[str, Any]] | None:
        """All sessions, as `sentinelctl status --json` shows them; None if the daemon does not
        answer. Unlike ctl(), this method starts no process, so tests can ask often."""
        try:
            found: list[dict[str, Any]] = request(self.control, "status", 60)["sessions"]
        except SentinelError:
            return None
        return found

    def session(self, pid: int) -> dict[str, Any] | None:
        """The session of a process; None if there is no session or no answer."""
        return next((one for one in self.sessions() or () if one["pid"] == pid), None)

    def stop(self) -> None:
        """Stop the daemon. Asserts that it stops in time and without an error."""
        assert self.process.stderr is not None
        try:
            self.process.send_signal(signal.SIGTERM)
            assert self.process.wait(timeout=PATIENCE_S) == 0
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stderr.close()


def ctl(control: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*SENTINELCTL, "--socket", str(control), *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    started = Daemon(tmp_path_factory.mktemp("daemon"))
    yield started
    started.stop()


def test_an_unreachable_daemon_is_an_error(tmp_path: Path) -> None:
    line = refused(ctl(tmp_path / "none.sock", "status"), "daemon-unreachable")
    assert "systemctl start sentineld" in line


def test_status_of_an_idle_daemon(daemon: Daemon) -> None:
    answer = json.loads(daemon.ctl("status", "--json").stdout)
    assert answer["schema"] == 1
    assert answer["pid"] == daemon.process.pid
    assert answer["sessions"] == []
    assert "no sessions" in daemon.ctl("status").stdout


def test_attaching_to_a_missing_process_is_refused(daemon: Daemon) -> None:
    pid = int(Path("/proc/sys/kernel/pid_max").read_text())  # larger than all pids
    assert str(pid) in refused(daemon.ctl("attach", str(pid)), "no-such-process")


def test_verbs_on_a_process_without_shim_are_refused(daemon: Daemon) -> None:
    for verb in (
        ["attach"],
        ["detach"],
        ["tensors"],
        ["plan", "show"],
        ["meter"],
        ["record", "-o", "/tmp/none.npz"],
    ):
        line = refused(daemon.ctl(*verb, str(os.getpid())), "not-a-shim-process")
        assert "python3 -m sentineld.shim" in line


@pytest.mark.parametrize("fast", ["0%", "120%", "lots", "-4", ""])
def test_invalid_budgets_are_usage_errors(daemon: Daemon, fast: str) -> None:
    assert daemon.ctl("attach", "1", "--fast", fast).returncode == EXIT_STATUS["usage"]


def test_a_second_daemon_does_not_take_the_socket(daemon: Daemon) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sentineld.daemon", "--config", str(daemon.folder / "config.toml")],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == EXIT_STATUS["busy"]
    assert "another daemon" in done.stderr
    assert "pages are observed by" not in done.stderr  # the machine was not probed
    assert daemon.ctl("status").returncode == 0


def test_a_machine_whose_sysfs_cannot_be_read(tmp_path: Path) -> None:
    hidden = 'mount -t tmpfs none /sys && exec "$@"'
    wrapper = ["unshare", "--mount", "--propagation", "private", "sh", "-c", hidden, "sh"]
    if os.geteuid() != 0 or subprocess.run([*wrapper, "true"]).returncode != 0:
        pytest.skip("no file system can be mounted here")
    daemon = Daemon(tmp_path, wrapper=wrapper)
    try:
        answer = json.loads(daemon.ctl("status", "--json").stdout)
        assert answer["tiers"] == []
        url = f"http://127.0.0.1:{daemon.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as page:
            assert "sentineld_build_info" in page.read().decode()
    finally:
        daemon.stop()
    doctor = [*SENTINELCTL, "--socket", str(tmp_path / "none.sock"), "doctor", "--json"]
    done = subprocess.run([*wrapper, *doctor], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stderr == ""
    assert json.loads(done.stdout)["checks"]


def test_an_invalid_configuration_is_an_error(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("fats = 1")
    done = subprocess.run(
        [sys.executable, "-m", "sentineld.daemon", "--config", str(config)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == EXIT_STATUS["bad-config"]
    assert "did you mean fast?" in done.stderr


def test_metrics_are_served_on_the_loopback_address(daemon: Daemon) -> None:
    url = f"http://127.0.0.1:{daemon.metrics_port}/metrics"
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        text = answer.read().decode()
    assert "sentineld_build_info" in text
    assert 'sentineld_feature_available{feature="ebpf"} 0.0' in text


@pytest.mark.parametrize("garbage", [b"\xff" * 64, b"\x02\x00\x00\x00[]", b"", b"GET / HTTP/1.0"])
def test_garbage_on_either_socket_does_not_harm_the_daemon(daemon: Daemon, garbage: bytes) -> None:
    for path in (daemon.control, daemon.folder / "shim.sock"):
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(str(path))
            peer.sendall(garbage)
            peer.shutdown(socket.SHUT_WR)
            peer.settimeout(PATIENCE_S)
            with contextlib.suppress(ConnectionResetError):  # the daemon may hang up early
                while peer.recv(4096):
                    pass
    assert daemon.ctl("status").returncode == 0


def test_hello_without_descriptors_is_refused(daemon: Daemon) -> None:
    body = json.dumps({"type": "hello", "version": 1, "pid": 1}).encode()
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(daemon.folder / "shim.sock"))
        peer.sendall(len(body).to_bytes(4, "little") + body)
        peer.settimeout(PATIENCE_S)
        received = b""
        while data := peer.recv(4096):
            received += data
    answer = json.loads(received[4:])
    assert len(received) == 4 + int.from_bytes(received[:4], "little")
    assert answer["type"] == "refused"
    assert answer["error"]
    assert json.loads(daemon.ctl("status", "--json").stdout)["sessions"] == []
