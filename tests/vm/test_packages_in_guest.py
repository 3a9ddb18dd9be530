# SPDX-License-Identifier: Apache-2.0
"""The tutorial of the Debian packages: the commands of docs/tutorial-packages.md run in a fresh
guest, and their outputs are those of the page, except for figures.

A guest has no network. So the image contains the packages of Debian that the page's commands would
fetch: PyTorch, Prometheus, and those on which the packages of sentineld depend.
build/tutorial-packages.txt has the whole output of all commands of the last run.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from .fixtures import FreshGuest
from .guest import Guest
from .host import REPOSITORY
from .recipe import DIVERTED
from .rootfs import in_root
from .ssh import GuestProcess
from .training import PORTABLE
from .tutorial import INTERRUPT, Step, files, first_missing, first_word, shape, steps

pytestmark = [pytest.mark.apart, pytest.mark.long, pytest.mark.timeout(7200)]

PAGE = REPOSITORY / "docs/tutorial-packages.md"
TRANSCRIPT = REPOSITORY / "build/tutorial-packages.txt"
FOLDER = "/srv/tutorial"
PACKAGE_FOLDERS = ("packages", "newer")
"""Folders in which the page expects the packages, one for each version of them."""
TRAINING = "train.py"

SETUP = f"""
set -e
echo force-unsafe-io > /etc/dpkg/dpkg.cfg.d/99mmdebstrap
dpkg-divert --rename --remove {DIVERTED}
"""
"""Makes dpkg install all files of a package and compile Python packages. To save time, neither was
done when the image was built."""
SHELL = (
    f"cd {FOLDER}; {PORTABLE.replace('env', 'export', 1)}"
    " DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8; "
)
KEPT_RUNNING = "sentinelctl run "
SCREEN = "sentinelctl top"
REPEATED = ("sentinelctl status", "promtool query")
"""Commands that are repeated until their output is that of the page, because the state that they
show is reached only after some time."""
PATIENCE_S = 1200.0
COMMAND_S = 3600.0

MANAGED = re.compile(r"^process (\d+) is managed: ", re.MULTILINE)
LOSS = re.compile(r"^step +(\d+)  loss (\S+)$", re.MULTILINE)

NOT_COMPARED = re.compile(
    r"/usr/lib/modules/[^/]+/modules\.|/var/(log|cache|tmp)/|/var/lib/(dpkg|apt|prometheus)/"
    r"|/var/lib/dkms/mok\.|/root/|/tmp/|/srv/tutorial|/usr/(lib|share)/python3/.*/__pycache__"
)
"""Files that other packages write: logs, caches, databases, DKMS's key, and bytecode of the modules
that were imported. The bytecode of sentineld is elsewhere, in /usr/lib/sentineld."""
REMAINING = {"/etc/prometheus/sentineld.rules.yml"}
"""The file outside FOLDER that the page tells the reader to create."""


def snapshot(guest: Guest) -> set[str]:
    """The guest's files and folders, except those that match NOT_COMPARED."""
    found = guest.run("find / -xdev", timeout=COMMAND_S).stdout.splitlines()
    return {path for path in found if not NOT_COMPARED.match(path)}


class Run:
    """A run of the page's commands in a guest."""

    def __init__(self, guest: Guest, page: str) -> None:
        self.guest = guest
        found = MANAGED.search(page)
        assert found is not None
        self._page_pid = found[1]
        self._pid = self._page_pid
        self._process: GuestProcess | None = None
        self._reader: threading.Thread | None = None
        self._lines: list[str] = []
        """The output of the command that is kept running."""
        TRANSCRIPT.parent.mkdir(exist_ok=True)
        TRANSCRIPT.write_text("")

    def carry_out(self, step: Step) -> None:
        """Run a command, and compare its output."""
        command = re.sub(rf"\b{self._page_pid}\b", self._pid, step.command)
        begin = time.monotonic()
        if command.startswith(KEPT_RUNNING):
            output = self._keep_running(command, step)
        elif command == INTERRUPT:
            output = self._interrupt(step)
        elif command == SCREEN:
            output = self._screen(step)
        elif command.startswith(REPEATED):
            # Prometheus answers only some time after its unit has started.
            output = self._until_shown(lambda: self.shell(command, check=False), step)
        else:
            output = self.shell(command)
            check(step, output)
        seconds = time.monotonic() - begin
        with TRANSCRIPT.open("a") as file:
            file.write(f"$ {command}    # {seconds:.0f} s\n{output.rstrip()}\n\n")

    def shell(self, command: str, check: bool = True) -> str:
        """The output of a command. check: whether the command must succeed."""
        return self.guest.run(f"{SHELL}{{ {command}; }} 2>&1", COMMAND_S, check).stdout

    @property
    def output(self) -> str:
        """The output so far of the command that is kept running."""
        return "".join(self._lines)

    def _keep_running(self, command: str, step: Step) -> str:
        self._process = self.guest.start(f"{SHELL}exec {command}")
        assert self._process.stdout is not None
        self._reader = threading.Thread(
            target=self._read, args=(self._process.stdout,), daemon=True
        )
        self._reader.start()
        output = self._until_shown(lambda: self.output, step)
        found = MANAGED.search(output)
        assert found is not None
        self._pid = found[1]
        return output

    def _read(self, output: IO[str]) -> None:
        for line in output:
            self._lines.append(line)

    def _interrupt(self, step: Step) -> str:
        """Send SIGINT to the training. `sentinelctl run` ignores the SIGINT that Ctrl-C sends."""
        assert self._process is not None
        assert self._reader is not None
        lines = len(self._lines)
        self.shell(f"kill -INT {self._pid}")
        self._process.wait(timeout=PATIENCE_S)
        self._reader.join(timeout=PATIENCE_S)
        output = "".join(self._lines[lines:])
        check(step, output)
        return output

    def _screen(self, step: Step) -> str:
        """Run SCREEN in a terminal of 80 columns, and end it with the key q; returns its screen."""
        self.shell(f"tmux -u new-session -d -s tutorial -x 80 -y 24 '{SCREEN}'")
        capture = "tmux capture-pane -p -t tutorial"
        output = self._until_shown(lambda: self.shell(capture), step, first_word)
        self.shell(
            "tmux send-keys -t tutorial q; while tmux has-session 2>/dev/null; do sleep 1; done"
        )
        return output

    def _until_shown(
        self, read: Callable[[], str], step: Step, alike: Callable[[str], str] = shape
    ) -> str:
        deadline_s = time.monotonic() + PATIENCE_S
        while first_missing(step.output, output := read(), alike) is not None:
            if time.monotonic() > deadline_s:
                check(step, output, alike)
            time.sleep(3)
        return output


def check(step: Step, output: str, alike: Callable[[str], str] = shape) -> None:
    """Fail if the output of a step differs from the page's."""
    missing = first_missing(step.output, output, alike)
    assert missing is None, (
        f"{step.command}: the page shows {missing!r}, but the output is\n{output}"
    )


def losses_of(page: str, steps_trained: int, folder: Path) -> list[tuple[str, str]]:
    """Run the page's training without sentineld, in the image's root tree and without pauses.
    Returns the losses that it prints."""
    (folder / TRAINING).write_text(files(page)[TRAINING])
    program = (
        "import runpy, sys, time; time.sleep = lambda seconds: None;"
        f" sys.argv = ['{TRAINING}', '{steps_trained}'];"
        f" runpy.run_path('/mnt/tutorial/{TRAINING}', run_name='__main__')"
    )
    output = in_root(f'{PORTABLE} python3 -c "{program}"', read_only={folder: "/mnt/tutorial"})
    return LOSS.findall(output.stdout)


def test_the_tutorial_of_the_packages(
    fresh_guest: FreshGuest, packages: list[dict[str, Path]], tmp_path: Path
) -> None:
    page = PAGE.read_text()
    # One thread emulates the CPU: see fixtures.SYSTEM.
    guest = fresh_guest(tcg_thread="single", cpus=1)
    guest.run(SETUP)
    for folder, version in zip(PACKAGE_FOLDERS, packages, strict=True):
        for path in version.values():
            guest.put(path, f"{FOLDER}/{folder}/{path.name}")
    for name, text in files(page).items():
        (tmp_path / name).write_text(text)
        guest.put(tmp_path / name, f"{FOLDER}/{name}")
    before = snapshot(guest)
    assert not [path for path in before if "sentinel" in path]  # FOLDER is not compared

    run = Run(guest, page)
    for step in steps(page):
        run.carry_out(step)

    losses = LOSS.findall(run.output)
    assert len(losses) > 1
    assert losses_of(page, int(losses[-1][0]), tmp_path) == losses
    assert guest.run("dpkg-query --show '*sentinel*'", check=False).stdout == ""
    assert "sentinel" not in guest.run("lsmod").stdout
    assert (snapshot(guest) ^ before) - REMAINING == set()
