# SPDX-License-Identifier: Apache-2.0
"""The verb `run` exits with its command's status and attaches the command's training processes.

tests/integration/test_run.py runs real trainings.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGTERM
from typing import Any

import pytest

from sentineld.base.errors import SentinelError
from sentineld.cli import output
from sentineld.cli import run as run_module
from sentineld.cli.output import Daemon
from sentineld.cli.run import SHIM_FOLDER, Launch, descends, environment
from sentineld.control.frames import Message
from tests.sentinelctl import SENTINELCTL
from tests.unit.cli.answering import answering


def launch(folder: Path, *command: str) -> int:
    return Launch(Daemon(folder / "none.sock"), {"fast": None, "policy": None}).run(command)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("pass", 0),
        ("raise SystemExit(7)", 7),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137),
    ],
)
def test_the_exit_status_is_the_commands(tmp_path: Path, code: str, status: int) -> None:
    assert launch(tmp_path, sys.executable, "-S", "-c", code) == status


def test_the_command_goes_on_if_standard_error_cannot_be_written(tmp_path: Path) -> None:
    marker = tmp_path / "ended"
    command = ["sh", "-c", f"sleep 3; touch {marker}; exit 7"]
    # The warning that no daemon answers cannot be written.
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*SENTINELCTL, "--socket", str(tmp_path / "none.sock"), "run", "--", *command],
            stderr=full,
            timeout=120,
            check=False,
        )
    assert done.returncode == 7
    assert marker.exists()


def test_a_command_that_cannot_be_started_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(SentinelError, match="cannot start /no/such/program") as error:
        launch(tmp_path, "/no/such/program")
    assert error.value.code == "usage"


@pytest.mark.parametrize("option", ["--fast", "--limit"])
@pytest.mark.parametrize("value", ["much", "0"])
def test_an_impossible_size_starts_nothing(tmp_path: Path, option: str, value: str) -> None:
    marker = tmp_path / "started"
    with answering(tmp_path) as ctl:
        assert ctl.refused("run", option, value, "--", "touch", str(marker)).code == "usage"
    assert not marker.exists()


def test_an_unknown_policy_starts_nothing(tmp_path: Path) -> None:
    marker = tmp_path / "started"
    with answering(tmp_path) as ctl:
        refused = ctl.refused("run", "--policy", "autoo", "--", "touch", str(marker))
    assert refused.code == "unknown-policy"
    assert not marker.exists()


def test_the_prefix_keeps_process_and_status(tmp_path: Path) -> None:
    prefix = ("/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', str(tmp_path / "pid"))
    code = "import os, sys; raise SystemExit(os.getpid() == int(open(sys.argv[1]).read()))"
    wanted = {"fast": None, "policy": None}
    limited = Launch(Daemon(tmp_path / "none.sock"), wanted, prefix)
    assert limited.run((sys.executable, "-S", "-c", code, str(tmp_path / "pid"))) == 1
    with pytest.raises(SentinelError, match="cannot start /no/such/program"):
        limited.run(("/no/such/program",))


@pytest.mark.parametrize(
    ("before", "after", "fast"),
    [(None, "", None), ("", "", "20%"), ("/mine:/too", ":/mine:/too", "1GiB")],
)
def test_python_in_the_command_starts_under_the_shim(
    before: str | None, after: str, fast: str | None
) -> None:
    base = {"HOME": "/root"} | ({} if before is None else {"PYTHONPATH": before})
    found = environment(base, fast)
    inject, package = SHIM_FOLDER / "inject", SHIM_FOLDER.parent.parent
    assert found == {
        "HOME": "/root",
        "PYTHONPATH": f"{inject}:{package}{after}",
        "SENTINELD_SHIM": "1",
        "SENTINELD_FAST": fast or "",
    }
    assert (inject / "sitecustomize.py").is_file()


def test_signals_are_forwarded_to_the_command(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
        # The verb ignores SIGINT, because a terminal sends SIGINT to the command, too.
        "os.kill(os.getppid(), signal.SIGINT)\n"
        "os.kill(os.getppid(), signal.SIGTERM)\n"
        "time.sleep(60)\n"
    )
    assert launch(tmp_path, sys.executable, "-S", "-c", script) == 5


def test_a_signal_during_the_start_of_the_command_is_forwarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = subprocess.Popen

    def interrupted(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        os.kill(os.getpid(), signal.SIGTERM)
        return start(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    assert launch(tmp_path, "sleep", "60") == 128 + signal.SIGTERM


def test_signals_that_are_ignored_stay_ignored_in_the_command(tmp_path: Path) -> None:
    """nohup ignores SIGHUP. A shell without job control ignores SIGINT and SIGQUIT in a command
    that it starts by `&`."""
    run = [*SENTINELCTL, "--socket", str(tmp_path / "none.sock"), "run", "--"]
    done = subprocess.run(
        ["sh", "-c", 'trap "" HUP INT; exec "$@"', "-", *run, "cat", "/proc/self/status"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    fields = dict(line.split(":\t", 1) for line in done.stdout.splitlines())
    ignored = int(fields["SigIgn"], 16)
    for number, is_ignored in ((SIGHUP, True), (SIGINT, True), (SIGTERM, False)):
        assert bool(ignored >> (number - 1) & 1) is is_ignored, number


def test_descent_ends_at_the_root() -> None:
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", "import os; os.read(0, 1)"], stdin=subprocess.PIPE
    )
    try:
        assert descends(child.pid, child.pid)
        assert descends(child.pid, os.getpid())
        assert descends(child.pid, os.getppid())
        assert not descends(os.getpid(), child.pid)
    finally:
        child.communicate(b"x")
    assert not descends(child.pid, os.getpid())


def test_only_new_trainings_of_the_command_are_attached_once_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "POLL_S", 0.02)
    go = tmp_path / "go"
    seen: list[int] = []

    def session(pid: int, state: str = "registered", step: int = 3) -> dict[str, Any]:
        return {"pid": pid, "state": state, "step": step}

    def status(_: Message) -> Any:
        pid = int((tmp_path / "pid").read_text() or 0) if (tmp_path / "pid").exists() else 0
        seen.append(pid)
        if pid and len(seen) > 4:
            go.touch()
        # The test's own process is not in the command's process tree, so it must not be attached.
        # The command's process trains from the third request on.
        trained = session(pid, step=3 if len(seen) > 2 else 0)
        found = [session(os.getpid()), *([trained] if pid else [])]
        return {"time_ns": len(seen), "sessions": found}

    script = (
        "import os, pathlib, sys, time\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "(folder / 'pid.tmp').write_text(str(os.getpid()))\n"
        "(folder / 'pid.tmp').rename(folder / 'pid')\n"
        "while not (folder / 'go').exists(): time.sleep(0.01)\n"
    )
    with answering(tmp_path, status=status, attach=lambda arguments: arguments) as ctl:
        wanted = {"fast": "30%", "policy": None}
        assert Launch(Daemon(ctl.socket), wanted).run((sys.executable, "-S", "-c", script)) == 0
    attached = [arguments for verb, arguments in ctl.asked if verb == "attach"]
    assert attached == [{"pid": int((tmp_path / "pid").read_text()), **wanted}]


def test_a_process_is_reported_when_it_is_managed_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_module, "POLL_S", 0.01)
    asked: list[int] = []

    def status(_: Message) -> Any:
        asked.append(len(asked))
        if len(asked) > 3 and (tmp_path / "pid").exists():
            (tmp_path / "go").touch()
        found = [{**MANAGED, "pid": int(file.read_text())} for file in tmp_path.glob("pid")]
        return {"time_ns": asked[-1], "sessions": found}

    # The rename makes the file "pid" appear together with its content.
    written = f"echo $$ > {tmp_path}/new && mv {tmp_path}/new {tmp_path}/pid"
    script = f"{written}; while [ ! -e {tmp_path}/go ]; do sleep 0.01; done"
    with answering(tmp_path, status=status) as ctl:
        wanted = {"fast": None, "policy": None}
        assert Launch(Daemon(ctl.socket), wanted).run(("sh", "-c", script)) == 0
    managed, summary = capsys.readouterr().err.splitlines()
    assert " is managed: policy auto" in managed
    assert ": 3 steps; fast share" in summary
    assert ctl.asked == [("status", {})] * len(asked)  # no attach: the process is managed already


MANAGED = {
    "state": "managed",
    "reason": "the plan is live",
    "policy": "auto",
    "step": 3,
    "resident_bytes": [1, 2],
}


def test_a_daemon_that_refuses_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_module, "POLL_S", 0.01)
    asked: list[str] = []

    class Absent(Daemon):
        def ask_briefly(self, verb: str, **arguments: Any) -> Any:
            asked.append(verb)
            if len(asked) > 3:
                (tmp_path / "go").touch()
            return super().ask_briefly(verb, **arguments)

    script = f"while [ ! -e {tmp_path}/go ]; do sleep 0.01; done"
    absent = Launch(Absent(tmp_path / "none.sock"), {"fast": None, "policy": None})
    assert absent.run(("sh", "-c", script)) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: no daemon answers at ")
    assert line.endswith("; the command continues unmanaged")


def test_a_daemon_that_ends_is_reported_once_and_its_successor_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_module, "POLL_S", 0.01)
    asked: list[str] = []

    class Restarted(Daemon):
        def ask_briefly(self, verb: str, **arguments: Any) -> Any:
            asked.append(verb)
            if len(asked) in (2, 3):
                return super().ask_briefly(verb, **arguments)
            if len(asked) > 4:
                (tmp_path / "go").touch()
            return {"time_ns": len(asked), "sessions": [{**MANAGED, "pid": os.getpid()}]}

    monkeypatch.setattr(run_module, "descends", lambda pid, root: True)
    script = f"while [ ! -e {tmp_path}/go ]; do sleep 0.01; done"
    restarted = Launch(Restarted(tmp_path / "none.sock"), {"fast": None, "policy": None})
    assert restarted.run(("sh", "-c", script)) == 0
    managed, warning, summary = capsys.readouterr().err.splitlines()
    assert " is managed: " in managed
    assert warning.startswith("warning: no daemon answers at ")
    assert warning.endswith("; the command's processes will reconnect to a new daemon")
    assert ": 3 steps; fast share" in summary


def test_a_daemon_that_does_not_answer_does_not_delay_the_end_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the time-out of other requests, the command's end would be noticed after 600 s."""
    monkeypatch.setattr(run_module, "POLL_S", 0.01)
    monkeypatch.setattr(output, "BRIEF_TIMEOUT_S", 0.2)
    with socket.socket(socket.AF_UNIX) as hung:
        hung.bind(str(tmp_path / "none.sock"))
        hung.listen(64)  # connections wait here, because none is accepted
        assert launch(tmp_path, "sh", "-c", "sleep 1; exit 7") == 7
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: no answer to status in time")


@pytest.mark.parametrize("code", ["daemon-unreachable", "busy"])
def test_a_process_is_attached_again_if_the_attach_failed_or_the_program_was_replaced(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an exec(), the process's steps begin at 0 again."""
    monkeypatch.setattr(run_module, "POLL_S", 0.01)
    steps, attached_at = iter([3, 4, 5, 5, 0, 0, 1, 2]), []
    step = 0

    class Restarted(Daemon):
        def ask(self, verb: str, **arguments: Any) -> Any:
            attached_at.append(step)
            if len(attached_at) == 1:
                raise SentinelError(code, "not now")
            return {}

        def ask_briefly(self, verb: str, **arguments: Any) -> Any:
            nonlocal step
            step = next(steps, -1)
            if step < 0:
                (tmp_path / "go").touch()
            registered = {**MANAGED, "state": "registered", "pid": os.getpid(), "step": step}
            return {"time_ns": 1, "sessions": [registered] if step >= 0 else []}

    monkeypatch.setattr(run_module, "descends", lambda pid, root: True)
    script = f"while [ ! -e {tmp_path}/go ]; do sleep 0.01; done"
    restarted = Launch(Restarted(tmp_path / "none.sock"), {"fast": None, "policy": None})
    assert restarted.run(("sh", "-c", script)) == 0
    assert attached_at == [3, 4, 1]
