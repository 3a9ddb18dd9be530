# SPDX-License-Identifier: Apache-2.0
"""Verbs that manage or meter a process: attach, detach, meter."""

from __future__ import annotations

import click

from sentineld.base.units import FastBudget, format_bytes, parse_bytes
from sentineld.cli.output import Daemon, json_option, print_json, print_table
from sentineld.cli.progress import session_progress, wait_managed
from sentineld.cli.targets import target_arguments, target_options


@click.command()
@target_options
@click.option(
    "--tree", is_flag=True, help="Manage PID and its descendants together, in one budget."
)
@click.option(
    "--fast",
    help="Fast memory: a share of the peak, such as 20%, or a size, such as 48MiB.  "
    "[default: the daemon's]",
)
@click.option(
    "--weight",
    type=float,
    help="Weight of the session in the shared budget.  [default: 1]",
)
@click.option("--min", "least", metavar="SIZE", help="Smallest share of the shared budget.")
@click.option("--max", "most", metavar="SIZE", help="Largest share of the shared budget.")
@click.option("--policy", help="Policy that makes the plan.  [default: the daemon's]")
@click.option("--wait", is_flag=True, help="Wait until the target is managed.")
@json_option
@click.pass_obj
def attach(
    daemon: Daemon,
    pid: int | None,
    cgroup: str | None,
    unit: str | None,
    tree: bool,
    fast: str | None,
    weight: float | None,
    least: str | None,
    most: str | None,
    policy: str | None,
    wait: bool,
    as_json: bool,
) -> None:
    """Start managing the training process PID, which must run under the shim.

    A daemon whose tiers are memory and swap manages any process PID, process tree, cgroup
    or systemd unit. It uses the policy temperature, which pages out the pages that the
    processes use least. A group has one budget. If --fast is a percentage, it is a percentage
    of the largest size that the processes have reached while they are managed. On a machine
    with swap, a daemon with paged tiers can manage these targets, too; for a single process,
    also give --policy temperature.

    If the target is already managed, this verb changes its budget or policy without a
    new profile. If an option is omitted, its current value is kept.

    If the daemon has a shared budget (shared_fast in its configuration), a process or group
    that is attached without --fast shares this budget with other sessions: the daemon changes
    the session's budget while it runs. --weight, --min and --max can be changed later.

    With --wait, the exit status is 0 only if the target is managed.
    """
    target = target_arguments(pid, cgroup, unit)
    if tree:
        if pid is None:
            raise click.UsageError("--tree needs a PID.")
        target["tree"] = True
    if fast is not None:
        FastBudget.parse(fast)
    terms: dict[str, float | str | None] = {"weight": weight, "min": least, "max": most}
    for size in (least, most):
        if size is not None:
            parse_bytes(size)
    given = {name: value for name, value in terms.items() if value is not None}
    with session_progress("attaching", daemon, pid or 0):
        session = daemon.ask_long("attach", **target, fast=fast, policy=policy, **given)
    if wait:
        session = wait_managed(daemon, session)
    if as_json:
        print_json({"session": session})
    else:
        click.echo(
            f"attached {session.get('group') or session['pid']}: policy {session['policy']}, "
            f"fast {session['fast']}{', managed' if wait else ''}"
        )


@click.command()
@target_options
@json_option
@click.pass_obj
def detach(
    daemon: Daemon, pid: int | None, cgroup: str | None, unit: str | None, as_json: bool
) -> None:
    """Stop managing the process PID or a group; the processes continue to run.

    To detach a process tree, give the PID of its root. If the root has exited and another process
    has its PID, give the PID that `sentinelctl status` shows for the tree.
    """
    session = daemon.ask_long("detach", **target_arguments(pid, cgroup, unit))
    if as_json:
        print_json({"session": session})
    else:
        click.echo(f"detached {session.get('group') or session['pid']}")


@click.command()
@click.argument("pid", type=click.IntRange(min=1))
@click.option(
    "--steps",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="Number of steps to meter.",
)
@json_option
@click.pass_obj
def meter(daemon: Daemon, pid: int, steps: int, as_json: bool) -> None:
    """Count PID's accesses to tensor pages by tier, for whole managed steps.

    All accesses to a page in one stretch count as one access. To count the accesses, the
    kernel module causes page faults, which slow the metered steps down. On emulated and
    paged tiers, the accesses are taken from the profile, and each page's tier is taken
    from the residency map.
    """
    with session_progress(f"metering {pid}", daemon, pid):
        answer = daemon.ask_long("meter", pid=pid, steps=steps)
    if as_json:
        print_json(answer)
        return
    emulated = bool(answer["emulated"])
    if emulated:
        click.echo(
            f"tiers are emulated (preset {answer['emulated']}); this does not measure hardware"
        )
    print_table(
        ("STEP", "ACCESSES", "FAST SHARE", "CHARGED", "MOVED", "LATE", *(("DELAY",) * emulated)),
        [
            (
                step["step"],
                step["accesses"],
                f"{100 * step['fast_share']:.1f} %",
                format_bytes(step["charged_bytes_max"]),
                format_bytes(step["moved_bytes"]),
                step["late_moves"],
                *((f"{step['delay_owed_ns'] / 1e6:.1f} ms",) * emulated),
            )
            for step in answer["steps"]
        ],
    )
