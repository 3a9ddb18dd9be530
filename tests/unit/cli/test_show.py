# SPDX-License-Identifier: Apache-2.0
"""Output of the verbs `status`, `tensors` and `plan show` for given answers of the daemon."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sentineld.base.errors import SentinelError
from sentineld.control.frames import Message
from sentineld.control.server import WithFile
from sentineld.plan.store import write_plan
from tests.unit.cli.answering import answering
from tests.unit.plan.toys import HEAP, PAGE, toy_plan, toy_profile

SESSION = {
    "pid": 4242,
    "state": "managed",
    "policy": "auto",
    "budget_bytes": 3 << 20,
    "charged_bytes": 2 << 20,
    "peak_bytes": 9 << 20,
    "step": 12,
    "source": "module",
    "reason": "the plan is live",
    "disturbed": "",
    "paging": None,
    "energy": None,
    "swap": None,
}
SWAP = {
    "swapped_bytes": 6 << 20,
    "paged_out_bytes": 8 << 20,
    "returned_bytes": 2 << 20,
    "prefetched_bytes": 0,
    "left_out": 0,
    "scans": 7,
    "interval_s": 1.5,
    "cpu_share": 0.0123,
    "skipped_bytes": {"locked": 4096},
}
STATUS: dict[str, Any] = {
    "version": "0.1.0",
    "pid": 9,
    "tiers": [
        {"nodes": [0, 1], "capacity_bytes": 2 << 30},
        {"nodes": [2], "capacity_bytes": 1 << 30},
    ],
    "tiers_source": "sysfs:memory_tiering",
    "emulated": "",
    "paged": "",
    "swap": False,
    "backends": [
        {"name": "module", "usable": False, "tells": "everything"},
        {"name": "shim", "usable": True, "tells": "reads and writes"},
    ],
    "problems": [],
    "sessions": [SESSION],
}


def test_status_has_a_line_for_the_daemon_the_backend_and_each_session(tmp_path: Path) -> None:
    with answering(tmp_path, status=lambda _: STATUS) as ctl:
        daemon, backend, header, row = ctl.output("status").splitlines()
        assert json.loads(ctl.output("status", "--json")) == {"schema": 1, **STATUS}
    assert daemon == (
        "sentineld 0.1.0, pid 9; tier 0: node 0,1 (2.0 GiB), tier 1: node 2 (1.0 GiB); "
        "from sysfs:memory_tiering"
    )
    assert backend == "pages are observed by: shim (reads and writes)"
    assert header.split()[:3] == ["PID", "STATE", "POLICY"]
    cells = [cell.strip() for cell in row.split("  ") if cell.strip()]
    sizes = ["3.0 MiB", "2.0 MiB", "9.0 MiB"]
    assert cells == ["4242", "managed", "auto", *sizes, "12", "module", "the plan is live"]


def test_status_names_the_rule_that_attached_a_process(tmp_path: Path) -> None:
    rule = "/etc/sentineld/config.toml: attach rule 2"
    answer = {**STATUS, "sessions": [{**SESSION, "rule": rule}]}
    with answering(tmp_path, status=lambda _: answer) as ctl:
        last = ctl.output("status").splitlines()[-1]
    assert last == f"process 4242 was attached by {rule}"


def test_list_has_a_line_for_each_session(tmp_path: Path) -> None:
    waiting = {**SESSION, "pid": 7, "state": "registered", "policy": "", "fast": ""}
    answer = {**STATUS, "sessions": [{**SESSION, "fast": "20%"}, waiting]}
    with answering(tmp_path, status=lambda _: answer) as ctl:
        lines = ctl.output("list").splitlines()
        listed = json.loads(ctl.output("list", "--json"))["sessions"]
    assert [line.split() for line in lines] == [
        ["PID", "STATE", "POLICY", "FAST", "STEP"],
        ["4242", "managed", "auto", "20%", "12"],
        ["7", "registered", "-", "-", "12"],
    ]
    assert [one["pid"] for one in listed] == [4242, 7]


def test_status_and_list_name_the_ranks_of_jobs(tmp_path: Path) -> None:
    job = {"name": "bert-7", "rank": 5, "world_size": 16, "local_rank": 1}
    in_job, alone = {**SESSION, "fast": "20%", "job": job}, {**SESSION, "pid": 7, "fast": ""}
    answer = {**STATUS, "sessions": [in_job, {**alone, "job": None}]}
    with answering(tmp_path, status=lambda _: answer) as ctl:
        status = ctl.output("status").splitlines()
        lines = ctl.output("list").splitlines()
        listed = json.loads(ctl.output("list", "--json"))["sessions"]
    assert [line for line in status if "job" in line] == [
        "process 4242 is rank 5 of 16 of job bert-7"
    ]
    assert [line.split()[5:] for line in lines] == [["JOB", "RANK"], ["bert-7", "5/16"], ["-", "-"]]
    assert [one["job"] for one in listed] == [job, None]


def test_watched_status_is_one_line_of_json_each(tmp_path: Path) -> None:
    """The daemon ends after two answers."""
    answers = iter([STATUS, {**STATUS, "pid": 10}])

    def status(_: Message) -> Any:
        for answer in answers:
            return answer
        raise SentinelError("daemon-unreachable", "no daemon answers")

    with answering(tmp_path, status=status) as ctl:
        result = ctl.run("status", "--watch", "--json", "--interval", "0.1")
    assert isinstance(result.exception, SentinelError)
    assert [json.loads(line) for line in result.output.splitlines()] == [
        {"schema": 1, **STATUS},
        {"schema": 1, **STATUS, "pid": 10},
    ]


def test_the_interval_is_a_number(tmp_path: Path) -> None:
    with answering(tmp_path, status=lambda _: STATUS) as ctl:
        for wrong in ("0", "nan", "often"):
            assert ctl.run("status", "--interval", wrong).exit_code == 2


def test_status_of_paged_tiers_has_what_was_read_and_written(tmp_path: Path) -> None:
    paging = {"bytes_read": 3 << 30, "bytes_written": 1 << 30, "faults": 17}
    answer = {**STATUS, "paged": "/mnt/nvme", "sessions": [{**SESSION, "paging": paging}]}
    with answering(tmp_path, status=lambda _: answer) as ctl:
        output = ctl.output("status")
    assert "tier 1 a file in /mnt/nvme\n" in output
    assert (
        "process 4242 has read 3.0 GiB from its file and written 1.0 GiB; "
        "17 accesses waited for a page\n"
    ) in output


def test_status_explains_shares_of_the_shared_budget(tmp_path: Path) -> None:
    share = {
        "size_bytes": 8 << 20,
        "sessions": 2,
        "ranks": 4,
        "weight": 1.0,
        "least_bytes": 0,
        "most_bytes": None,
        "share_bytes": 3 << 20,
        "equal_bytes": 4 << 20,
        "slowdown": 1.05,
        "equal_slowdown": 1.02,
        "relative_slowdown": 1.05 / 1.02,
        "gain_per_mib": 0.0031,
    }
    unknown = {"slowdown": None, "equal_slowdown": None, "gain_per_mib": None}
    limited = share | unknown | {"sessions": 1, "ranks": 1}
    limited |= {"least_bytes": 1 << 20, "most_bytes": 5 << 20}
    sessions = [{**SESSION, "share": share}, {**SESSION, "share": limited}]
    status = {**STATUS, "shared_bytes": 8 << 20, "sessions": sessions}
    with answering(tmp_path, status=lambda _: status) as ctl:
        lines = ctl.output("status").splitlines()
    assert "sessions without --fast share 8.0 MiB of tier 0" in lines
    assert lines[-2:] == [
        "process 4242 has a share of 3.0 MiB (weight 1) of the 8.0 MiB that 2 sessions share (4 "
        "ranks of its job count as one); an equal share is 4.0 MiB; predicted step: 1.050 x "
        "all-fast, 1.020 x with an equal share; 1 MiB more saves 0.31% of the all-fast step",
        "process 4242 has a share of 3.0 MiB (weight 1, minimum 1.0 MiB, maximum 5.0 MiB) of the "
        "8.0 MiB that 1 session shares; an equal share is 4.0 MiB; the value of more memory is "
        "not known yet",
    ]


def test_status_explains_the_share_of_processes_over_swap(tmp_path: Path) -> None:
    share = {
        "size_bytes": 8 << 20,
        "sessions": 2,
        "ranks": 1,
        "weight": 1.0,
        "least_bytes": 0,
        "most_bytes": None,
        "share_bytes": 5 << 20,
        "spare_bytes": 1 << 20,
        "equal_bytes": 4 << 20,
        "slowdown": 1.05,
        "equal_slowdown": 1.1,
        "relative_slowdown": 1.05 / 1.1,
        "gain_per_mib": 0.05,
    }
    session = {**SESSION, "share": share, "swap": SWAP | {"working_set_bytes": 6 << 20}}
    session |= {"group": "tree of process 4242", "processes": [4242]}
    answer = {**STATUS, "shared_bytes": 8 << 20, "sessions": [session]}
    with answering(tmp_path, status=lambda _: answer) as ctl:
        lines = ctl.output("status").splitlines()
    assert lines[-2] == (
        "tree of process 4242 has a share of 5.0 MiB (weight 1, including 1.0 MiB that no other "
        "session needs) of the 8.0 MiB that 2 sessions share; an equal share is 4.0 MiB; predicted "
        "run time: 1.050 x all-fast, 1.100 x with an equal share; 1 MiB more saves 5.00% of the "
        "all-fast run time"
    )
    assert "of a core; working set 6.0 MiB; never paged out: locked 4.0 KiB" in lines[-1]


def test_status_has_the_energy_of_a_step_and_its_source(tmp_path: Path) -> None:
    for source, words in (("rapl", "of the machine, by RAPL"), ("modelled", "modelled")):
        energy = {"joules_per_step": 12.345, "source": source}
        answer = {**STATUS, "sessions": [{**SESSION, "energy": energy}]}
        with answering(tmp_path, status=lambda _, answer=answer: answer) as ctl:
            assert f"process 4242 uses 12.3 J a step ({words})\n" in ctl.output("status")


def test_status_of_swap_has_page_outs_and_cpu_time(tmp_path: Path) -> None:
    tiers = [{"nodes": [], "capacity_bytes": 2 << 30}, {"nodes": [], "capacity_bytes": 1 << 30}]
    answer = {**STATUS, "swap": True, "tiers": tiers, "sessions": [{**SESSION, "swap": SWAP}]}
    with answering(tmp_path, status=lambda _: answer) as ctl:
        output = ctl.output("status")
        empty = {**answer, "sessions": []}
    assert "tier 0: memory (2.0 GiB), tier 1: swap (1.0 GiB)" in output
    assert output.endswith(
        "process 4242: 6.0 MiB are swapped out; paged out 8.0 MiB, returned 2.0 MiB, prefetched "
        "0 B; 7 scans, one every 1.5 s, 1.2% of a core; never paged out: locked 4.0 KiB\n"
    )
    with answering(tmp_path, status=lambda _: empty) as ctl:
        assert "sentinelctl attach PID" in ctl.output("status")


def test_status_names_groups_and_counts_their_processes(tmp_path: Path) -> None:
    swap = {
        "swapped_bytes": 0,
        "paged_out_bytes": 0,
        "returned_bytes": 0,
        "prefetched_bytes": 0,
        "scans": 0,
        "interval_s": 1.0,
        "cpu_share": 0.0,
        "skipped_bytes": {},
        "left_out": 0,
        "left_out_reason": "",
    }
    one = {"cgroup": "/sys/fs/cgroup/app", "group": "cgroup /sys/fs/cgroup/app", "processes": [4]}
    left_out = {**swap, "left_out": 2, "left_out_reason": "process 9 runs under the shim"}
    other = {"cgroup": "", "group": "tree of process 4242", "processes": [4242, 4243]}
    sessions = [{**SESSION, **one, "swap": left_out}, {**SESSION, **other, "swap": swap}]
    answer = {**STATUS, "sessions": sessions}
    with answering(tmp_path, status=lambda _: answer) as ctl:
        lines = ctl.output("status").splitlines()
    rows = [line.split()[0] for line in lines[3:5]]
    assert rows == ["/sys/fs/cgroup/app", "4242"]
    assert lines[5].startswith(
        "cgroup /sys/fs/cgroup/app: 1 process, 2 left out (process 9 runs under the shim); 0 B are"
    )
    assert lines[6].startswith("tree of process 4242: 2 processes; 0 B are")


@pytest.mark.parametrize("hostile", ["\x1b[2J", "\udcff"])
def test_names_that_users_choose_are_printed_without_control_characters(
    tmp_path: Path, hostile: str
) -> None:
    folder = f"/sys/fs/cgroup/{hostile}"
    session = {**SESSION, "fast": "20%", "reason": hostile, "disturbed": f"{hostile} moved"}
    session |= {"cgroup": folder, "group": f"cgroup {folder}", "processes": [4]}
    session["swap"] = {**SWAP, "left_out": 1, "left_out_reason": hostile}
    answer = {**STATUS, "sessions": [session]}
    shown = "?[2J" if hostile.startswith("\x1b") else "?"
    with answering(tmp_path, status=lambda _: answer) as ctl:
        for verb in ("status", "list"):
            lines = ctl.output(verb).splitlines()
            assert all(line.isprintable() for line in lines)
            assert any(line.startswith(f"/sys/fs/cgroup/{shown} ") for line in lines)
        status = ctl.output("status")
        # The JSON has the exact name, which a program needs, for example, to detach the session.
        listed = json.loads(ctl.output("status", "--json"))["sessions"]
    assert f"cgroup /sys/fs/cgroup/{shown}: 1 process, 1 left out ({shown}); " in status
    assert status.endswith(f"warning: process 4242: {shown} moved\n")
    assert listed[0]["cgroup"] == folder


@pytest.mark.parametrize(("kind", "slow"), [({"paged": "/mnt"}, "file"), ({"swap": True}, "swap")])
def test_status_names_the_media_of_tiers_that_are_no_nodes(
    tmp_path: Path, kind: dict[str, Any], slow: str
) -> None:
    with answering(tmp_path, status=lambda _: {**STATUS, **kind}) as ctl:
        output = ctl.output("status")
    assert f"tier 0: memory (2.0 GiB), tier 1: {slow} (1.0 GiB); from" in output


def test_status_warns_of_problems_and_disturbances(tmp_path: Path) -> None:
    answer = {
        **STATUS,
        "tiers": [],
        "problems": ["only one memory tier"],
        "sessions": [{**SESSION, "disturbed": "kswapd0 demoted 8 of its pages"}],
    }
    with answering(tmp_path, status=lambda _: answer) as ctl:
        output = ctl.output("status")
    assert "no tiers" in output
    assert "warning: only one memory tier\n" in output
    assert output.endswith("warning: process 4242: kswapd0 demoted 8 of its pages\n")


def test_status_without_sessions_says_how_to_start_one(tmp_path: Path) -> None:
    answer = {**STATUS, "emulated": "cxl", "sessions": []}
    with answering(tmp_path, status=lambda _: answer) as ctl:
        output = ctl.output("status")
    assert "tiers are emulated (preset cxl)" in output
    assert "python3 -m sentineld.shim train.py" in output


def test_tensors_are_listed_largest_first(tmp_path: Path) -> None:
    small = {
        "tensor": 3,
        "kind": "gradient",
        "bytes": 4096,
        "birth_stretch": 1,
        "death_stretch": 2,
        "bytes_read": 0,
        "bytes_written": 4096,
        "page_accesses": 1,
    }
    large = {**small, "tensor": 5, "bytes": 1 << 20, "placed": "fast", "reason": "fast: hot"}
    with answering(tmp_path, tensors=lambda _: {"tensors": [small, large]}) as ctl:
        _, first, second = ctl.output("tensors", "7").splitlines()
        answer = json.loads(ctl.output("tensors", "7", "--json"))
    assert first.startswith("5")
    assert first.split()[-3:] == ["fast", "fast:", "hot"]
    assert second.startswith("3")
    assert second.split()[-4:] == ["-", "not", "planned", "yet"]
    assert answer["tensors"] == [small, large]
    assert ctl.asked == [("tensors", {"pid": 7})] * 2


def test_plan_show_prints_the_daemons_text_and_the_bound(tmp_path: Path) -> None:
    answer = {"text": "arena 4 MiB", "bound": {"fast_share": 0.915, "fixed_share": 0.5}}
    with answering(tmp_path, plan=lambda _: answer) as ctl:
        assert ctl.output("plan", "show", "7") == "arena 4 MiB\n"
        text, bound = ctl.output("plan", "show", "7", "--bound").splitlines()
        assert json.loads(ctl.output("plan", "show", "7", "--json"))["text"] == text
    assert "91.5%" in bound
    assert "50.0%" in bound
    assert [arguments["bound"] for _, arguments in ctl.asked] == [False, True, False]


def sent_plan(_: Message) -> WithFile:
    """A plan, as the daemon sends it."""
    fd = os.memfd_create("plan")
    with os.fdopen(fd, "wb", closefd=False) as file:
        write_plan(replace(toy_plan(), reasons=("because",) * 5), toy_profile(), file)
    return WithFile({"names": [[HEAP + 4 * PAGE, "parameter", "block.weight"]]}, fd)


def test_plan_show_writes_a_page_with_the_daemons_plan(tmp_path: Path) -> None:
    file = tmp_path / "plan.html"
    with answering(tmp_path, **{"plan-file": sent_plan}) as ctl:
        assert ctl.output("plan", "show", "7", "--html", str(file)) == f"wrote {file}\n"
        answer = json.loads(ctl.output("plan", "show", "7", "--html", str(file), "--json"))
    assert answer == {"schema": 1, "file": str(file)}
    assert ctl.asked == [("plan-file", {"pid": 7})] * 2
    page = file.read_text()
    for text in ("plan of process 7", "block.weight", "because", "by hand"):
        assert text in page


def test_a_page_that_cannot_be_written_is_refused_before_the_daemon_is_asked(
    tmp_path: Path,
) -> None:
    with answering(tmp_path, **{"plan-file": sent_plan}) as ctl:
        error = ctl.refused("plan", "show", "7", "--html", str(tmp_path / "none" / "it.html"))
        assert error.hint
        error = ctl.refused("plan", "show", "7", "--bound", "--html", str(tmp_path / "it.html"))
        assert error.code == "usage"
    assert ctl.asked == []


@pytest.mark.parametrize("verb", ["status", "list"])
def test_tables_fit_a_terminal_of_40_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    job = {"name": "two-machines", "rank": 5, "world_size": 16, "local_rank": 1}
    answer = {**STATUS, "sessions": [{**SESSION, "fast": "20%", "job": job}]}
    with answering(tmp_path, status=lambda _: answer) as ctl:
        lines = ctl.output(verb).splitlines()
    table = [line for line in lines if not line.startswith(("sentineld", "pages", "process"))]
    assert len(table) > 2
    assert all(len(line) <= 40 for line in table)
