# SPDX-License-Identifier: Apache-2.0
"""`sentinelctl record` on real trainings: the real daemon, shim and CLI on this machine.

Without the kernel module, the traces hold only the accesses that the framework reports;
tests in the guest (tests/vm/test_sessions.py) record sampled pages.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sentineld.model.profile import Kind
from sentineld.observe.page_sampler import DEVICE
from sentineld.profile.trace import Trace, profile_of
from sentineld.profile.trace_file import load_trace
from sentineld.report.labels import label, stretch_places
from tests.integration.shim.daemon_side import Training
from tests.integration.test_daemon import PATIENCE_S, Daemon
from tests.sentinelctl import SENTINELCTL, refused

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    started = Daemon(tmp_path_factory.mktemp("daemon"))
    yield started
    started.stop()


def wait(done: Callable[[], Any]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline_s, "timed out"
        time.sleep(0.05)


def session(daemon: Daemon, pid: int) -> dict[str, Any] | None:
    sessions = daemon.sessions()
    assert sessions is not None
    return next((one for one in sessions if one["pid"] == pid), None)


@pytest.fixture
def train(daemon: Daemon, tmp_path: Path) -> Iterator[Callable[..., Training]]:
    started: list[Training] = []

    def start(*arguments: str) -> Training:
        shim = daemon.folder / "shim.sock"
        training = Training(*arguments, socket_path=shim, stop=tmp_path / "stop")
        started.append(training)
        wait(lambda: session(daemon, training.process.pid) is not None)
        return training

    yield start
    (tmp_path / "stop").touch()
    for training in started:
        training.process.send_signal(signal.SIGCONT)
        training.process.wait(timeout=PATIENCE_S)


def record(daemon: Daemon, pid: int, file: Path, *options: str) -> Trace:
    done = daemon.ctl("record", str(pid), "-o", str(file), *options)
    assert done.returncode == 0, done.stderr
    return load_trace(file)


def check_losses(training: Training) -> None:
    losses = training.finish()
    assert len(losses) > 5
    assert losses == training.plain_losses(len(losses))


def test_a_recorded_step_matches_the_model(
    daemon: Daemon, train: Callable[..., Training], tmp_path: Path
) -> None:
    training = train("cnn")
    pid = training.process.pid
    trace = record(daemon, pid, tmp_path / "it.npz", "--steps", "3")
    assert len(trace.steps) == 4
    assert trace.facts["pid"] == pid
    assert trace.facts["torch"]
    assert not trace.facts["managed"]
    profile = profile_of(trace)
    if not DEVICE.exists():
        assert profile.source == "shim"
        assert any("no pages were sampled" in note for note in trace.facts["notes"])
    labels = label(trace, profile)
    places = stretch_places(profile)

    weight = labels.names.index("head.weight")
    assert labels.kind(weight) == "parameter"
    assert profile.tensors["bytes"][weight] == 16 * 16 * 16 * 10 * 4
    rows = profile.accesses[profile.accesses["tensor"] == weight]
    read_in = {places[stretch] for stretch in rows["stretch"][rows["bytes_read"] > 0].tolist()}
    written_in = {
        places[stretch] for stretch in rows["stretch"][rows["bytes_written"] > 0].tolist()
    }
    assert {"head forward", "head backward"} <= read_in
    # Adam updates all parameters together, so any stretch of the optimizer may write the weight.
    assert written_in
    assert all(place.startswith("optimizer") for place in written_in)
    states = [name for name in labels.names if name.startswith("head.weight exp_avg")]
    assert sorted(states) == ["head.weight exp_avg", "head.weight exp_avg_sq"]
    assert any(name.endswith("(gradient)") for name in labels.names)

    # All accesses reported by the framework belong to the step's tensors.
    ops = trace.op_accesses
    begin_ns, end_ns = int(trace.steps[-1].records["time_ns"][0]), trace.steps[-1].end_ns
    inside = ops[(ops["time_ns"] >= begin_ns) & (ops["time_ns"] < end_ns)]
    assert int(profile.accesses["bytes_read"].sum()) == int(inside["bytes"][~inside["write"]].sum())
    untouched = np.setdiff1d(np.arange(len(profile.tensors)), profile.accesses["tensor"])
    assert all(profile.tensors["kind"][untouched] == Kind.PERSISTENT)

    answer = session(daemon, pid)
    assert answer is not None
    assert answer["state"] == "registered"
    check_losses(training)


def test_a_process_can_be_recorded_repeatedly(
    daemon: Daemon, train: Callable[..., Training], tmp_path: Path
) -> None:
    training = train("transformer")
    pid = training.process.pid
    profiles = [
        profile_of(record(daemon, pid, tmp_path / "it.npz", "--steps", "1")) for _ in range(3)
    ]
    for profile in profiles[1:]:
        assert profile.peak_bytes == profiles[0].peak_bytes
        assert profile.slot_count == profiles[0].slot_count
    check_losses(training)


def test_all_reports_work_on_a_real_trace(
    daemon: Daemon, train: Callable[..., Training], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    training = train("transformer")
    file = tmp_path / "it.npz"
    record(daemon, training.process.pid, file)
    for arguments in (
        [],
        ["tensors", "--sort", "hotness"],
        ["heatmap"],
        ["heatmap", "-o", str(tmp_path / "heat.png")],
        ["timeline"],
        ["timeline", "-o", str(tmp_path / "live.svg")],
        ["trace-export", "-o", str(tmp_path / "it.json")],
    ):
        done = daemon.ctl("report", str(file), *arguments)
        assert done.returncode == 0, done.stderr
        assert done.stdout
    events = json.loads((tmp_path / "it.json").read_text())["traceEvents"]
    assert any(event["name"] == "head backward" for event in events)


def test_only_one_recording_runs_and_it_ends_with_the_process(
    daemon: Daemon, train: Callable[..., Training], tmp_path: Path
) -> None:
    training = train("cnn")
    pid = str(training.process.pid)
    # A stopped process runs no steps, so its recording does not finish.
    training.process.send_signal(signal.SIGSTOP)
    first = subprocess.Popen(
        [
            *SENTINELCTL,
            *("--socket", str(daemon.control)),
            *("record", pid, "-o", str(tmp_path / "first.npz")),
        ],
        stderr=subprocess.PIPE,
        text=True,
    )

    def being_recorded() -> bool:
        found = session(daemon, training.process.pid)
        return found is not None and found["reason"] == "it is being recorded"

    wait(being_recorded)
    file = str(tmp_path / "second.npz")
    assert "is being recorded" in refused(daemon.ctl("record", pid, "-o", file), "wrong-state")
    refused(daemon.ctl("attach", pid), "wrong-state")
    training.process.kill()
    assert first.stderr is not None
    with first.stderr as stream:
        line = stream.read()
    assert first.wait(timeout=PATIENCE_S) == 1
    assert line.startswith(f"error: process {pid}: ")
    assert not list(tmp_path.glob("*.npz"))


def test_a_training_whose_steps_never_repeat_is_refused(
    daemon: Daemon, train: Callable[..., Training], tmp_path: Path
) -> None:
    training = train("cnn", "--vary")
    pid = str(training.process.pid)
    done = daemon.ctl("record", pid, "-o", str(tmp_path / "it.npz"), "--steps", "10")
    assert "allocates differently from step to step" in refused(done, "failed")
    check_losses(training)


def test_an_output_in_a_missing_folder_is_refused(daemon: Daemon, tmp_path: Path) -> None:
    file = str(tmp_path / "none" / "it.npz")
    line = refused(daemon.ctl("record", str(os.getpid()), "-o", file), "failed")
    assert "there is no folder" in line
