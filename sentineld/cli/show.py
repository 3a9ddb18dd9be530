# SPDX-License-Identifier: Apache-2.0
"""Read-only verbs: status, list, tensors, plan show."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Any

import click

from sentineld.base.errors import SentinelError
from sentineld.base.text import printable
from sentineld.base.units import format_bytes
from sentineld.cli.output import Daemon, json_option, print_json, print_table, session_title
from sentineld.cli.progress import Progress
from sentineld.model import job


@click.command()
@click.option("--watch", is_flag=True, help="Repeat until interrupted.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3600),
    default=2.0,
    show_default=True,
    help="Seconds between two repetitions of --watch.",
)
@json_option
@click.pass_obj
def status(daemon: Daemon, watch: bool, interval: float, as_json: bool) -> None:
    """Show the daemon, its tiers and its sessions.

    With --watch, a terminal is cleared before each repetition. With --watch and --json, each
    answer is one line of JSON (NDJSON).
    """
    if not interval < math.inf:  # FloatRange accepts nan
        raise click.BadParameter("nan is not a number of seconds", param_hint="--interval")
    while True:
        answer = daemon.ask("status")
        if as_json:
            print_json(answer, one_line=watch)
        else:
            if watch:
                click.clear()
            _print_status(answer)
        if not watch:
            return
        time.sleep(interval)


def _print_status(answer: dict[str, Any]) -> None:
    tiers = ", ".join(
        f"tier {index}: {_place(answer, index)} ({format_bytes(tier['capacity_bytes'])})"
        for index, tier in enumerate(answer["tiers"])
    )
    known = f"{tiers}; from {answer['tiers_source']}" if tiers else "no tiers"
    click.echo(f"sentineld {answer['version']}, pid {answer['pid']}; {known}")
    if answer["emulated"]:
        click.echo(
            f"tiers are emulated (preset {answer['emulated']}): all pages stay in DRAM, and "
            "accesses to slow pages are delayed according to the timing model"
        )
    if answer["paged"]:
        click.echo(f"tiers are paged: tier 0 is memory, tier 1 a file in {answer['paged']}")
    if answer.get("shared_bytes"):
        click.echo(
            f"sessions without --fast share {format_bytes(answer['shared_bytes'])} of tier 0"
        )
    if answer["swap"]:
        click.echo("tiers are memory and swap: processes without the shim can be attached")
    backend = next(one for one in answer["backends"] if one["usable"])
    click.echo(f"pages are observed by: {backend['name']} ({backend['tells']})")
    for problem in answer["problems"]:
        click.echo(f"warning: {problem}")
    if not answer["sessions"]:
        click.echo(
            "no sessions; manage a process with: sentinelctl attach PID"
            if answer["swap"]
            else "no sessions; start a training with: python3 -m sentineld.shim train.py"
        )
        return
    print_table(
        ("PID", "STATE", "POLICY", "BUDGET", "CHARGED", "PEAK", "STEP", "SOURCE", "REASON"),
        [
            (
                _target(session),
                session["state"],
                session["policy"] or "-",
                format_bytes(session["budget_bytes"]),
                format_bytes(session["charged_bytes"]),
                format_bytes(session["peak_bytes"]),
                session["step"],
                session["source"] or "-",
                session["reason"],
            )
            for session in answer["sessions"]
        ],
    )
    for session in answer["sessions"]:
        if rule := session.get("rule"):
            click.echo(f"process {session['pid']} was attached by {rule}")
        if own := job.of_message(session.get("job")):
            click.echo(f"process {session['pid']} is {own.title}")
        if paging := session["paging"]:
            click.echo(
                f"process {session['pid']} has read {format_bytes(paging['bytes_read'])} from its "
                f"file and written {format_bytes(paging['bytes_written'])}; {paging['faults']} "
                "accesses waited for a page"
            )
        if energy := session["energy"]:
            whose = "of the machine, by RAPL" if energy["source"] == "rapl" else "modelled"
            click.echo(
                f"process {session['pid']} uses {energy['joules_per_step']:.3g} J a step ({whose})"
            )
        if share := session.get("share"):
            click.echo(f"{session_title(session)} {_share_line(share, bool(session['swap']))}")
        if swap := session["swap"]:
            click.echo(f"{session_title(session)}: {_group_line(session)}{_swap_line(swap)}")
        if session["disturbed"]:
            click.echo(f"warning: process {session['pid']}: {printable(session['disturbed'])}")


@click.command("list")
@json_option
@click.pass_obj
def list_sessions(daemon: Daemon, as_json: bool) -> None:
    """List the sessions.

    `sentinelctl status` shows more about each session.
    """
    sessions = daemon.ask("status")["sessions"]
    if as_json:
        keys = ("pid", "group", "state", "policy", "fast", "step", "job")
        print_json({"sessions": [{key: one.get(key, "") for key in keys} for one in sessions]})
        return
    header = ["PID", "STATE", "POLICY", "FAST", "STEP"]
    rows = [
        [
            _target(session),
            session["state"],
            session["policy"] or "-",
            session["fast"] or "-",
            session["step"],
        ]
        for session in sessions
    ]
    jobs = [job.of_message(session.get("job")) for session in sessions]
    if any(jobs):
        header += ["JOB", "RANK"]
        for row, own in zip(rows, jobs, strict=True):
            row += [own.name if own else "-", _rank(own)]
    print_table(header, rows)


def _rank(own: job.Job | None) -> str:
    if own is None or own.rank is None:
        return "-"
    return str(own.rank) if own.world_size is None else f"{own.rank}/{own.world_size}"


def _place(answer: dict[str, Any], index: int) -> str:
    """The nodes of a tier as text. If tier 1 is a file or swap, "memory" for tier 0, and "file" or
    "swap" for tier 1. answer: the daemon's answer to `status`."""
    if answer["paged"] or answer["swap"]:
        return ("memory", "swap" if answer["swap"] else "file")[index]
    return f"node {','.join(map(str, answer['tiers'][index]['nodes']))}"


def _target(session: dict[str, Any]) -> Any:
    """The folder of the session's cgroup; for a session without a cgroup, its PID."""
    return session.get("cgroup") or session["pid"]


def _group_line(session: dict[str, Any]) -> str:
    """How many processes of a group are managed, and how many are left out, as text; "" for a
    single process."""
    if not session.get("group"):
        return ""
    swap, count = session["swap"], len(session["processes"])
    line = f"{count} {'process' if count == 1 else 'processes'}"
    if swap["left_out"]:
        line += f", {swap['left_out']} left out ({printable(swap['left_out_reason'])})"
    return f"{line}; "


def _share_line(share: dict[str, Any], over_swap: bool) -> str:
    """A session's share of the shared budget, and the reasons for it. over_swap: whether the
    session's policy is temperature; such a session has no steps."""
    count = share["sessions"]
    limits = [f"weight {share['weight']:g}"]
    if share["least_bytes"]:
        limits.append(f"minimum {format_bytes(share['least_bytes'])}")
    if share["most_bytes"] is not None:
        limits.append(f"maximum {format_bytes(share['most_bytes'])}")
    sharing = "1 session shares" if count == 1 else f"{count} sessions share"
    ranks = f" ({share['ranks']} ranks of its job count as one)" if share["ranks"] > 1 else ""
    if spare_bytes := share.get("spare_bytes"):  # a daemon of an earlier version has no such field
        limits.append(f"including {format_bytes(spare_bytes)} that no other session needs")
    line = (
        f"has a share of {format_bytes(share['share_bytes'])} ({', '.join(limits)}) of the "
        f"{format_bytes(share['size_bytes'])} that {sharing}{ranks}; an equal share is "
        f"{format_bytes(share['equal_bytes'])}"
    )
    if share["slowdown"] is None:
        return line + "; the value of more memory is not known yet"
    what = "run time" if over_swap else "step"
    line += f"; predicted {what}: {share['slowdown']:.3f} x all-fast"
    if share["equal_slowdown"] is not None:
        line += f", {share['equal_slowdown']:.3f} x with an equal share"
    if share["gain_per_mib"] is not None:
        line += f"; 1 MiB more saves {share['gain_per_mib']:.2%} of the all-fast {what}"
    return line


def _swap_line(swap: dict[str, Any]) -> str:
    """The figures of a session of policy temperature."""
    working_set = swap.get("working_set_bytes")
    kinds = [f"{kind} {format_bytes(size)}" for kind, size in swap["skipped_bytes"].items()]
    return (
        f"{format_bytes(swap['swapped_bytes'])} are swapped out; paged out "
        f"{format_bytes(swap['paged_out_bytes'])}, returned {format_bytes(swap['returned_bytes'])},"
        f" prefetched {format_bytes(swap['prefetched_bytes'])}; {swap['scans']} scans, one every "
        f"{swap['interval_s']:.1f} s, {swap['cpu_share']:.1%} of a core"
        + ("" if working_set is None else f"; working set {format_bytes(working_set)}")
        + (f"; never paged out: {', '.join(kinds)}" if kinds else "")
    )


@click.command()
@click.argument("pid", type=click.IntRange(min=1))
@json_option
@click.pass_obj
def tensors(daemon: Daemon, pid: int, as_json: bool) -> None:
    """List the tensors of one profiled step of PID, largest first.

    PLACED is the tier on which the script has placed the tensor (sentineld.shim.place).
    """
    answer = daemon.ask("tensors", pid=pid)
    if as_json:
        print_json(answer)
        return
    print_table(
        (
            *("TENSOR", "KIND", "BYTES", "BORN", "DIES", "READ", "WRITTEN", "PAGE ACCESSES"),
            *("PLACED", "WHERE"),
        ),
        [
            (
                tensor["tensor"],
                tensor["kind"],
                format_bytes(tensor["bytes"]),
                tensor["birth_stretch"],
                tensor["death_stretch"],
                format_bytes(tensor["bytes_read"]),
                format_bytes(tensor["bytes_written"]),
                tensor["page_accesses"],
                tensor.get("placed") or "-",
                tensor.get("reason", "not planned yet"),
            )
            for tensor in sorted(answer["tensors"], key=lambda tensor: -tensor["bytes"])
        ],
    )


@click.group()
def plan() -> None:
    """Explain what the daemon does with a session's pages."""


@plan.command()
@click.argument("pid", type=click.IntRange(min=1))
@click.option(
    "--bound",
    is_flag=True,
    help="Also compute the fast-share bound: no plan has a larger fast share at the profiled "
    "times.",
)
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write an HTML page into this file instead; an existing file is replaced.",
)
@json_option
@click.pass_obj
def show(daemon: Daemon, pid: int, bound: bool, html: Path | None, as_json: bool) -> None:
    """Show the plan of PID: layout, schedule, prediction.

    The HTML page of --html is one file and loads nothing from the network. It shows the live
    bytes by tier, the moves, the tier of each memory page in each layer, and a table of
    tensors with the reason for each tensor's placement.
    """
    if html is not None:
        if bound:
            raise SentinelError(
                "usage", "the page does not show the bound", "leave out --bound or --html"
            )
        _write_plan_page(daemon, pid, html)
        if as_json:
            print_json({"file": str(html)})
        else:
            click.echo(f"wrote {html}")
        return
    ask = daemon.ask_long if bound else daemon.ask
    with Progress("computing the bound" if bound else "reading the plan"):
        answer = ask("plan", pid=pid, bound=bound)
    if as_json:
        print_json(answer)
        return
    click.echo(answer["text"])
    if bound:
        best = answer["bound"]
        click.echo(
            "bound: with this budget, this migration bandwidth and the profiled times, the fast"
            f" share of any plan is at most {best['fast_share']:.1%}, and that of a plan without"
            f" moves at most {best['fixed_share']:.1%}"
        )


def _write_plan_page(daemon: Daemon, pid: int, path: Path) -> None:
    # These imports are local, because most uses of this module's verbs do not need numpy, whose
    # import is slow.
    from sentineld.model.records import TensorName
    from sentineld.plan.store import read_plan
    from sentineld.profile.trace_file import require_writable
    from sentineld.report.page import write_page
    from sentineld.report.page_data import page_data
    from sentineld.report.page_sources import plan_report

    require_writable(path)
    answer, fd = daemon.ask_file("plan-file", pid=pid)
    with os.fdopen(fd, "rb") as file:
        # This descriptor shares the file position of the daemon, which wrote the file and left the
        # position at its end.
        file.seek(0)
        plan, profile, _ = read_plan(file, "the daemon's answer")
    names = {address: TensorName(role, name) for address, role, name in answer["names"]}
    write_page(page_data(plan_report(plan, profile, names, f"plan of process {pid}")), path)
