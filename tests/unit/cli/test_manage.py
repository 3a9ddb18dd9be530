# SPDX-License-Identifier: Apache-2.0
"""Requests to the daemon and output of the verbs `attach`, `detach` and `meter`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sentineld.base.errors import SentinelError
from sentineld.control.frames import Message
from tests.unit.cli.answering import answering

SESSION = {"pid": 7, "policy": "auto", "fast": "20%"}
STEP = {
    "step": 12,
    "accesses": 400,
    "fast_share": 0.875,
    "charged_bytes_max": 3 << 20,
    "moved_bytes": 0,
    "late_moves": 2,
    "delay_owed_ns": 1_500_000,
}


def test_attach_asks_with_budget_and_policy(tmp_path: Path) -> None:
    with answering(tmp_path, attach=lambda _: SESSION) as ctl:
        assert ctl.output("attach", "7") == "attached 7: policy auto, fast 20%\n"
        answer = json.loads(
            ctl.output("attach", "7", "--fast", "20%", "--policy", "auto", "--json")
        )
    assert answer == {"schema": 1, "session": SESSION}
    assert ctl.asked == [
        ("attach", {"pid": 7, "fast": None, "policy": None}),
        ("attach", {"pid": 7, "fast": "20%", "policy": "auto"}),
    ]


def test_attach_asks_with_the_terms_of_a_shared_budget(tmp_path: Path) -> None:
    with answering(tmp_path, attach=lambda _: SESSION) as ctl:
        ctl.output("attach", "7", "--weight", "2.5", "--min", "1MiB", "--max", "2MiB")
        assert ctl.refused("attach", "7", "--min", "lots").code == "usage"
    terms = {"weight": 2.5, "min": "1MiB", "max": "2MiB"}
    assert ctl.asked == [("attach", {"pid": 7, "fast": None, "policy": None, **terms})]


def test_groups_are_attached_and_detached(tmp_path: Path) -> None:
    tree = {**SESSION, "group": "tree of process 7", "policy": "temperature"}
    group = {**tree, "group": "cgroup /a"}
    with answering(
        tmp_path,
        attach=lambda asked: group if "cgroup" in asked else tree,
        detach=lambda _: group,
    ) as ctl:
        text = ctl.output("attach", "7", "--tree")
        assert text == "attached tree of process 7: policy temperature, fast 20%\n"
        assert "attached cgroup /a:" in ctl.output("attach", "--cgroup", "/a")
        assert ctl.output("detach", "--cgroup", "/a") == "detached cgroup /a\n"
    nothing = {"fast": None, "policy": None}
    assert ctl.asked == [
        ("attach", {"pid": 7, "tree": True, **nothing}),
        ("attach", {"cgroup": "/a", **nothing}),
        ("detach", {"cgroup": "/a"}),
    ]


@pytest.mark.parametrize(
    "target",
    [(), ("--tree",), ("7", "--cgroup", "/a"), ("7", "--unit", "a"), ("--cgroup", "/a", "--tree")],
)
def test_a_target_that_is_none_does_not_reach_the_daemon(
    tmp_path: Path, target: tuple[str, ...]
) -> None:
    with answering(tmp_path) as ctl:
        assert ctl.run("attach", *target).exit_code == 2
    assert ctl.asked == []


def test_attach_can_wait_until_the_target_is_managed(tmp_path: Path) -> None:
    managed = {**SESSION, "state": "managed", "reason": "the plan is live"}
    status = {"sessions": [managed]}
    with answering(tmp_path, attach=lambda _: SESSION, status=lambda _: status) as ctl:
        line = ctl.output("attach", "7", "--wait")
        assert line == "attached 7: policy auto, fast 20%, managed\n"
        assert json.loads(ctl.output("attach", "7", "--wait", "--json"))["session"] == managed


@pytest.mark.parametrize("fast", ["120%", "much", "-1"])
def test_a_budget_that_is_none_does_not_reach_the_daemon(tmp_path: Path, fast: str) -> None:
    with answering(tmp_path, attach=lambda _: SESSION) as ctl:
        assert ctl.refused("attach", "7", f"--fast={fast}").code == "usage"
    assert ctl.asked == []


@pytest.mark.parametrize("verb", ["attach", "detach", "meter"])
@pytest.mark.parametrize("pid", ["0", "-7", "python"])
def test_only_a_process_id_is_taken(tmp_path: Path, verb: str, pid: str) -> None:
    with answering(tmp_path) as ctl:
        assert ctl.run(verb, "--", pid).exit_code == 2
    assert ctl.asked == []


def test_detach_says_what_it_did(tmp_path: Path) -> None:
    with answering(tmp_path, detach=lambda _: SESSION) as ctl:
        assert ctl.output("detach", "7") == "detached 7\n"
        assert json.loads(ctl.output("detach", "7", "--json"))["session"] == SESSION
    assert ctl.asked == [("detach", {"pid": 7})] * 2


@pytest.mark.parametrize("verb", ["attach", "detach", "meter"])
def test_the_daemons_refusal_ends_the_verb(tmp_path: Path, verb: str) -> None:
    def refuse(_: Message) -> Any:
        raise SentinelError("wrong-state", "process 7 is planning", "wait")

    with answering(tmp_path, **{verb: refuse}) as ctl:
        error = ctl.refused(verb, "7")
    assert (error.code, error.message, error.hint) == (
        "wrong-state",
        "process 7 is planning",
        "wait",
    )


def test_meter_prints_a_row_for_each_step(tmp_path: Path) -> None:
    answer = {"emulated": "", "steps": [STEP, {**STEP, "step": 13}]}
    with answering(tmp_path, meter=lambda _: answer) as ctl:
        header, first, second = ctl.output("meter", "7", "--steps", "2").splitlines()
        assert json.loads(ctl.output("meter", "7", "--json")) == {"schema": 1, **answer}
    assert header.split("  ")[0] == "STEP"
    assert "DELAY" not in header
    cells = [cell.strip() for cell in first.split("  ") if cell.strip()]
    assert cells == ["12", "400", "87.5 %", "3.0 MiB", "0 B", "2"]
    assert second.startswith("13")
    assert ctl.asked == [("meter", {"pid": 7, "steps": 2}), ("meter", {"pid": 7, "steps": 1})]


def test_meter_says_that_tiers_are_emulated(tmp_path: Path) -> None:
    with answering(tmp_path, meter=lambda _: {"emulated": "cxl", "steps": [STEP]}) as ctl:
        note, header, row = ctl.output("meter", "7").splitlines()
    assert "emulated (preset cxl)" in note
    assert header.endswith("DELAY")
    assert row.endswith("1.5 ms")


@pytest.mark.parametrize("steps", ["0", "1001", "one"])
def test_meter_takes_1_to_1000_steps(tmp_path: Path, steps: str) -> None:
    with answering(tmp_path) as ctl:
        assert ctl.run("meter", "7", "--steps", steps).exit_code == 2
