# SPDX-License-Identifier: Apache-2.0
"""The live view: pictures of its screens, and its keys, with a daemon's fixed answers.

tests/integration/test_top.py runs the view with a real daemon and a training.
"""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from sentineld.base.errors import SentinelError
from sentineld.top.app import Ended
from tests.unit.top.answers import IDLE, LATER, TRAINING, FakeDaemon, session, status
from tests.unit.top.watching import HOUR_S, View, check_screen, watch

UNREACHABLE = SentinelError(
    "daemon-unreachable", "no daemon answers at /run/control.sock", "systemctl start sentineld"
)
SECONDS = 7


@pytest.fixture
def daemon() -> FakeDaemon:
    return FakeDaemon(*map(status, range(SECONDS)))


async def settle(view: View) -> None:
    """Poll until the last status is shown, so that there are rates and a step time."""
    await view.until_shown("LAYER")
    for _ in range(SECONDS):
        assert view.app.reading is not None
        before_ns = view.app.reading.time_ns
        if before_ns == status(SECONDS - 1)["time_ns"]:
            break
        await view.press("space")
        await view.until(
            lambda before_ns=before_ns: view.app.reading.time_ns > before_ns,  # type: ignore[union-attr]
            "a poll",
        )
    await view.pilot.pause()


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (40, 24)])
def test_screens(daemon: FakeDaemon, columns: int, lines: int) -> None:
    async def scenario(view: View) -> None:
        await settle(view)
        check_screen(view, f"sessions-{columns}x{lines}")

    watch(daemon, scenario, (columns, lines))


@pytest.mark.parametrize("columns", [1, 6])
def test_a_very_narrow_terminal_is_no_error(daemon: FakeDaemon, columns: int) -> None:
    async def scenario(view: View) -> None:
        await view.press("question_mark")
        await view.press("escape", "b", "escape")
        assert view.app.is_running
        await view.pilot.resize_terminal(80, 24)
        await settle(view)
        assert "48.0 MiB" in view.text()
        await view.pilot.resize_terminal(columns, 24)
        await view.pilot.pause()

    watch(daemon, scenario, (columns, 24))


def is_grey(colour: str) -> bool:
    """Whether the amounts of red, green and blue are nearly equal."""
    shares = [int(colour[at : at + 2], 16) for at in (0, 2, 4)]
    return max(shares) - min(shares) <= 4


def test_no_color_is_respected(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def scenario(view: View) -> None:
        await settle(view)
        screen = view.svg().partition('<g transform="translate(9, 41)"')[2]
        styles = re.findall(r"r\d+ { fill: #(\w{6})", view.svg())
        colours = {*styles, *re.findall(r'fill="#(\w{6})"', screen)}
        assert len(colours) > 3
        assert [one for one in colours if not is_grey(one)] == []

    watch(daemon, scenario)


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (40, 24)])
def test_dialogs(daemon: FakeDaemon, columns: int, lines: int) -> None:
    async def scenario(view: View) -> None:
        await settle(view)
        await view.press("question_mark")
        check_screen(view, f"help-{columns}x{lines}")
        await view.press("escape", "b")
        await view.type("120%")
        check_screen(view, f"budget-{columns}x{lines}")
        await view.type("40%")
        check_screen(view, f"confirm-{columns}x{lines}")

    watch(daemon, scenario, (columns, lines))


def test_without_sessions_the_view_says_how_to_start_one() -> None:
    async def scenario(view: View) -> None:
        await view.until_shown("no sessions")
        check_screen(view, "no-sessions-80x24")
        await view.press("d")
        assert "no session is chosen" in view.text()

    watch(FakeDaemon({**status(), "sessions": []}), scenario)


def test_an_unreachable_daemon_is_asked_again(daemon: FakeDaemon) -> None:
    async def scenario(view: View) -> None:
        await settle(view)
        daemon.error = UNREACHABLE
        await view.press("space")
        await view.until_shown("no daemon answers")
        check_screen(view, "unreachable-80x24")
        daemon.error, daemon.statuses = None, [{**status(), "pid": 901}]
        await view.press("space")
        await view.until(lambda: "no daemon answers" not in view.text(), "the answer")
        assert "up -; down -" in view.text()  # a new daemon's counters begin at 0

    watch(daemon, scenario)


def test_a_view_without_a_first_answer_shows_the_error(daemon: FakeDaemon) -> None:
    daemon.error = UNREACHABLE

    async def scenario(view: View) -> None:
        await view.until_shown("no daemon answers")
        daemon.error = None
        await view.press("space")
        await view.until_shown("process 4242 is managed")

    watch(daemon, scenario)


def test_keys_choose_a_session(daemon: FakeDaemon) -> None:
    async def scenario(view: View) -> None:
        await settle(view)
        await view.press("down")
        await view.until_shown(f"process {LATER} is allocation")
        assert "LAYER" not in view.text()
        await view.press("space")
        await view.press("down")
        await view.until_shown(f"process {IDLE} is registered")
        await view.press("up", "up")
        await view.until_shown("LAYER")

    watch(daemon, scenario)


def test_the_end_of_the_chosen_session_chooses_another(daemon: FakeDaemon) -> None:
    async def scenario(view: View) -> None:
        await settle(view)
        left = status(SECONDS)
        left["sessions"] = [one for one in left["sessions"] if one["pid"] != TRAINING]
        daemon.statuses = [left]
        await view.press("space")
        await view.until_shown(f"process {TRAINING}: its session has ended")
        assert f"process {LATER} is allocation" in view.text()
        daemon.statuses = [{**status(SECONDS + 1), "sessions": []}]
        await view.press("space")
        await view.until_shown("no sessions")

    watch(daemon, scenario)


def test_a_tree_and_its_root_under_the_shim_are_two_sessions(daemon: FakeDaemon) -> None:
    tree = session(TRAINING, "managed", "the temperatures are known", group=f"tree of {TRAINING}")
    both = {**status(SECONDS), "sessions": [*status(SECONDS)["sessions"], tree]}
    daemon.statuses = [both]

    async def scenario(view: View) -> None:
        await view.until_shown(f"process {TRAINING} is managed")
        await view.until_shown("LAYER")
        await view.press("down")
        await view.until_shown(f"tree of {TRAINING} is managed: the temperatures are known")
        assert "LAYER" not in view.text()
        await view.press("d")
        await view.until_shown(f"process {TRAINING} has two sessions: use sentinelctl")
        await view.press("up")
        await view.until_shown("LAYER")
        await view.press("down")
        daemon.statuses = [status(SECONDS + 1)]
        await view.press("space")
        await view.until_shown(f"tree of {TRAINING}: its session has ended")
        assert f"process {TRAINING} is managed" in view.text()

    watch(daemon, scenario)


def test_results_that_arrive_while_the_view_ends_are_ignored(daemon: FakeDaemon) -> None:
    async def arrive(view: View) -> None:
        while view.app.post_message(Ended(TRAINING, "done")):
            await asyncio.sleep(0)

    async def scenario(view: View) -> None:
        task = asyncio.create_task(arrive(view))
        await view.until_shown("done")
        assert not task.done()

    watch(daemon, scenario)


def test_a_chosen_cgroup_stays_chosen_when_its_first_process_ends(daemon: FakeDaemon) -> None:
    def listed(second: float, pid: int) -> dict[str, Any]:
        cgroup = session(pid, "managed", "the temperatures are known", group="cgroup /a")
        return {**status(second), "sessions": [session(IDLE, "registered", ""), cgroup]}

    daemon.statuses = [listed(0, IDLE + 1)]

    async def scenario(view: View) -> None:
        await view.until_shown(f"process {IDLE} is registered")
        await view.press("down")
        await view.until_shown("cgroup /a is managed")
        daemon.statuses = [listed(1, IDLE + 2)]
        await view.press("space")
        await view.until_shown(str(IDLE + 2))
        assert "cgroup /a is managed" in view.text()
        assert "has ended" not in view.text()

    watch(daemon, scenario)


def attached(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"policy": arguments.get("policy", "auto"), "fast": arguments.get("fast", "20%")}


def test_another_budget_is_asked_for_after_a_question(daemon: FakeDaemon) -> None:
    daemon.answers["attach"] = attached

    async def scenario(view: View) -> None:
        await settle(view)
        await view.press("b")
        await view.type("lots")
        assert "'lots' is not a size" in view.text()
        await view.press("escape")
        await view.press("b")
        await view.type("40%")
        await view.press("n")
        assert daemon.asked == []
        await view.press("b")
        await view.type("40%")
        await view.press("y")
        await view.until_shown(f"process {TRAINING}: policy auto, fast 40%")

    watch(daemon, scenario)
    assert daemon.asked == [("attach", {"pid": TRAINING, "fast": "40%"})]


def test_another_policy_is_checked_before_it_is_asked_for(daemon: FakeDaemon) -> None:
    daemon.answers["attach"] = attached

    async def scenario(view: View) -> None:
        await settle(view)
        await view.press("p")
        assert "sentinel+spill" in view.text()  # the dialog lists the policies
        await view.type("statik")
        await view.until_shown("did you mean static")
        await view.type("static")
        await view.press("y")
        await view.until_shown("policy static, fast 20%")

    watch(daemon, scenario)
    assert daemon.asked == [("attach", {"pid": TRAINING, "policy": "static"})]


def test_detaching_needs_a_yes(daemon: FakeDaemon) -> None:
    daemon.answers["detach"] = lambda _: {}

    async def scenario(view: View) -> None:
        await settle(view)
        await view.press("d", "escape", "d", "n")
        assert daemon.asked == []
        await view.press("d", "y")
        await view.until_shown(f"detached {TRAINING}")

    watch(daemon, scenario)
    assert daemon.asked == [("detach", {"pid": TRAINING})]


def test_metering_shows_the_fast_share(daemon: FakeDaemon) -> None:
    daemon.answers["meter"] = lambda _: {"steps": [{"step": 812, "fast_share": 0.934}]}

    async def scenario(view: View) -> None:
        await settle(view)
        await view.press("m")
        await view.until_shown("served 93.4 % of the accesses of step 812")

    watch(daemon, scenario)


def test_an_action_ends_before_the_next_one_on_the_process_begins(daemon: FakeDaemon) -> None:
    proceed = threading.Event()

    def slow(_: dict[str, Any]) -> Any:
        proceed.wait()
        raise SentinelError("wrong-state", "process 4242 is planning", "wait")

    daemon.answers["meter"] = slow

    async def scenario(view: View) -> None:
        await settle(view)
        await view.press("m")
        await view.until_shown(f"process {TRAINING} is metered ...")
        await view.press("d")
        await view.until_shown(f"wait: process {TRAINING} is metered")
        proceed.set()
        await view.until_shown("process 4242 is planning (wait)")

    watch(daemon, scenario)


def test_an_action_that_fails_unexpectedly_does_not_block_the_process(daemon: FakeDaemon) -> None:
    def broken(_: dict[str, Any]) -> Any:
        raise ValueError("a bug")

    daemon.answers["meter"] = broken

    async def scenario(view: View) -> None:
        await settle(view)
        for _ in range(2):
            await view.press("m")
            await view.until_shown("ValueError: a bug")

    watch(daemon, scenario)


def test_a_trace_is_recorded_into_the_named_file(
    daemon: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written: list[tuple[int, Path]] = []

    def record(pid: int, path: Path) -> str:
        if len(written) == 2:
            raise OSError(28, "No space left on device")
        written.append((pid, path))
        path.touch()
        return f"recorded {path}"

    async def scenario(view: View) -> None:
        await settle(view)
        await view.press("r")
        await view.type("none/trace.npz")
        await view.until_shown("there is no folder none")
        await view.type("trace.npz")
        await view.until_shown("recorded trace.npz")
        await view.press("r")
        await view.type("trace.npz")
        await view.until_shown("Replace trace.npz?")
        await view.press("n", "r", "enter")
        await view.until_shown(f"recorded trace-{TRAINING}.npz")
        await view.press("r")
        await view.type("other.npz")
        await view.until_shown("No space left on device")

    watch(daemon, scenario, record=record)
    assert written == [(TRAINING, Path("trace.npz")), (TRAINING, Path(f"trace-{TRAINING}.npz"))]


def test_a_smaller_terminal_gets_other_columns(daemon: FakeDaemon) -> None:
    async def scenario(view: View) -> None:
        await settle(view)
        assert "VS PLAN" in view.text()
        await view.pilot.resize_terminal(40, 12)
        await view.until(lambda: "VS PLAN" not in view.text(), "the narrow table")
        assert f"{TRAINING}" in view.text()
        await view.pilot.resize_terminal(80, 24)
        await view.until_shown("VS PLAN")

    watch(daemon, scenario)


@pytest.mark.parametrize("key", ["q", "ctrl+c", "ctrl+q"])
def test_keys_that_quit(daemon: FakeDaemon, key: str) -> None:
    left: list[bool] = []

    async def scenario(view: View) -> None:
        await settle(view)
        await view.press("b")  # Ctrl+C quits from a dialog, too
        if key == "q":
            await view.press("escape")
        await view.press(key)
        await view.until(lambda: not view.app.is_running, "the end")
        left.append(True)

    watch(daemon, scenario, interval_s=HOUR_S)
    assert left
