# SPDX-License-Identifier: Apache-2.0
"""A real training under the shim, in a guest where sentineld is installed.

While tests wait for a state of a session, they poll the daemon's metrics: polling with sentinelctl
would cost too much CPU time in the emulated guest.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

from sentineld.base.errors import EXIT_STATUS
from sentineld.config import Config
from tests.charged_steps import meter_within

from .guest import TREE, Guest
from .host import MachineError

SCRIPTS = ("tests/eager.py", "tests/demo/train.py")
"""eager.py starts train.py without torch's compiler: importing the compiler takes an emulated guest
15 s of CPU time."""


def training_in(folder: str) -> str:
    """The training's command line after `python3`, with SCRIPTS in a folder. Its steps take less
    than a second in an emulated guest. A training with more pages would be recorded, metered and
    planned more slowly."""
    scripts = " ".join(f"{folder}/{script}" for script in SCRIPTS)
    return f"{scripts} --blocks 2 --positions 64 --width 256"


TRAINING = training_in(TREE)
USERS_FOLDER = "/var/tmp/training"
FOR_USERS = (
    f"mkdir -p {USERS_FOLDER} && cd {TREE} && cp --parents {' '.join(SCRIPTS)} {USERS_FOLDER}"
)
"""Copies SCRIPTS to USERS_FOLDER, where all users may read them."""
PAUSE = "--pause 1"
"""The pause after each step leaves CPU time to the code under test. It also keeps the number of
steps small: all of them have to be repeated without the daemon, to compare the losses."""
STEPS = 2000
PORTABLE = (
    "env ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41"
    " GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4,-AVX512F"
)
"""Prefix of a training's command. It makes the losses the same on all CPUs, because torch and its
libraries then use only instructions that every CPU has."""
STATUS = f"""
import json, pathlib, sys
sys.path.insert(0, "{TREE}")
from sentineld.control.client import request
print(json.dumps(request(pathlib.Path("{Config().control_socket}"), "status")))
"""
"""Prints the daemon's status. An emulated guest needs two seconds to start sentinelctl, and a tenth
of that for this program."""
LOG = "/tmp/training.log"
NO_EBPF = "/etc/sentineld/config.d/no-ebpf.toml"
WITHOUT_EBPF = f"mkdir -p $(dirname {NO_EBPF}); echo 'ebpf = \"off\"' > {NO_EBPF}"
"""Makes the next start of the daemon omit eBPF: compiling the eBPF programs takes a minute of CPU
time in an emulated guest."""


def wait(what: str, done: Callable[[], Any], seconds: float) -> Any:
    """Poll done() until it is true and return its value; fails after `seconds`."""
    deadline_s = time.monotonic() + seconds
    while not (value := done()):
        assert time.monotonic() < deadline_s, f"timeout after {seconds} s: {what}"
        time.sleep(2)
    return value


class Training:
    """A training process under the shim in the guest.

    command: the command that starts Python under the shim. It may start the training as a child
        process.
    """

    def __init__(
        self,
        guest: Guest,
        command: str = "python3 -m sentineld.shim",
        training: str = TRAINING,
    ) -> None:
        self.guest = guest
        others = states(guest).keys()
        line = f"exec {command} {training} {PAUSE} --steps {STEPS} > {LOG} 2>&1"
        self.process = guest.start(line)
        (self.pid,) = wait("hello", lambda: states(guest).keys() - others, 480)

    def end(self) -> None:
        """Kill the training, unless it has ended, and wait for the command."""
        if self.process.poll() is None:
            self.guest.run(f"kill -KILL {self.pid}", check=False)
            self.process.wait(timeout=240)

    def session(self) -> dict[str, Any] | None:
        """The status of the training's session; None if there is no daemon or no session."""
        return next((one for one in sessions(self.guest) if one["pid"] == self.pid), None)

    def in_state(self, state: str) -> bool:
        return states(self.guest).get(self.pid) == state

    def ask(self, verb: str, options: str = "") -> str:
        """The output of a sentinelctl verb about the training. If the session is entering another
        plan, wait until it is managed again."""
        command = f"sentinelctl {verb} {self.pid} {options}"
        while (
            "its state is entering"
            in (answer := self.guest.run(command, timeout=600, check=False)).stderr
        ):
            wait("managed again", lambda: self.in_state("managed"), 240)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    def meter(self, steps: int) -> list[dict[str, Any]]:
        """Meter steps."""
        answer = json.loads(self.ask("meter", f"--steps {steps} --json"))
        metered: list[dict[str, Any]] = answer["steps"]
        return metered

    def meter_within(
        self, most_bytes: int, steps: int, timeouts_before: int | None = None
    ) -> list[dict[str, Any]]:
        """Meter steps, and assert that each is charged at most most_bytes; see charged_steps.py."""
        return meter_within(most_bytes, lambda: self.meter(steps), self.session, timeouts_before)

    def wait_for_charge(self, most_bytes: int) -> None:
        """Wait until the charge stays within most_bytes for a whole step."""

        def within() -> bool:
            return bool(self.meter(1)[0]["charged_bytes_max"] <= most_bytes)

        wait(f"a charge of at most {most_bytes} bytes", within, 240)

    def losses(self) -> list[str]:
        return re.findall(r"loss (\S+)", self.guest.run(f"cat {LOG}").stdout)

    def expect_another_step(self) -> None:
        before = len(self.losses())
        wait("another step", lambda: len(self.losses()) > before, 480)


def sessions(guest: Guest) -> list[dict[str, Any]]:
    """The status of all sessions; empty if there is no daemon."""
    answer = guest.run(["python3", "-c", STATUS], check=False)
    if answer.returncode != 0:
        return []
    found: list[dict[str, Any]] = json.loads(answer.stdout)["sessions"]
    return found


def scrape(guest: Guest) -> str:
    """The daemon's metrics; empty if there is no daemon, or if it does not respond in time."""
    try:
        return guest.http_get(Config().metrics_port, "/metrics")
    except MachineError:
        return ""


def metrics(guest: Guest) -> str:
    """The daemon's metrics. Retries, because a scrape of a busy guest can exceed the time limit."""
    page: str = wait("metrics", lambda: scrape(guest), 240)
    return page


def states(guest: Guest) -> dict[int, str]:
    """Process id -> state of its session; empty without a daemon."""
    rows = re.findall(r"^sentineld_session_info\{(.*)\} 1", scrape(guest), re.MULTILINE)
    labels = [dict(re.findall(r'(\w+)="([^"]*)"', row)) for row in rows]
    return {int(one["pid"]): one["state"] for one in labels}


def wait_for_probes(guest: Guest) -> None:
    """Wait until the daemon has loaded its eBPF probes, which it compiles in the background."""
    available = 'sentineld_feature_available{feature="ebpf"} 1'
    wait("eBPF probes", lambda: available in scrape(guest), 800)


def refused(guest: Guest, command: str, code: str) -> str:
    """Run a sentinelctl command that must fail with `code`; returns its one line of output."""
    answer = guest.run(command, check=False, timeout=120)
    assert answer.returncode == EXIT_STATUS[code], answer.stdout + answer.stderr
    lines = (answer.stdout + answer.stderr).splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    return lines[0]
