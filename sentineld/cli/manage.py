# SPDX-License-Identifier: Apache-2.0
"""Verbs that manage or meter a process: attach, detach, meter."""

from __future__ import annotations

import click

from sentineld.base.units import FastBudget, format_bytes
from sentineld.cli.output import Daemon, json_option, print_json, print_table


@click.command()
@click.argument("pid", type=click.IntRange(min=1))
@click.option(
    "--fast",
    help="Fast memory: a share of the peak, such as 20%, or a size, such as 48MiB.  "
    "[default: the daemon's]",
)
@click.option("--policy", help="Policy that makes the plan.  [default: the daemon's]")
@json_option
@click.pass_obj
def attach(daemon: Daemon, pid: int, fast: str | None, policy: str | None, as_json: bool) -> None:
    """Start managing the training process PID, which must run under the shim.

    With a daemon whose tiers are memory and swap, start managing any process PID by the
    policy temperature, which pages out the pages that the process uses least. A share is
    then a share of the largest size that the process has reached while it is managed.

    If the process is already managed, this verb changes its budget or policy without a
    new profile. If an option is omitted, its current value is kept.
    """
    if fast is not None:
        FastBudget.parse(fast)
    session = daemon.ask_long("attach", pid=pid, fast=fast, policy=policy)
    if as_json:
        print_json({"session": session})
    else:
        click.echo(f"attached {pid}: policy {session['policy']}, fast {session['fast']}")


@click.command()
@click.argument("pid", type=click.IntRange(min=1))
@json_option
@click.pass_obj
def detach(daemon: Daemon, pid: int, as_json: bool) -> None:
    """Stop managing the process PID; it continues to run."""
    session = daemon.ask("detach", pid=pid)
    if as_json:
        print_json({"session": session})
    else:
        click.echo(f"detached {pid}")


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
