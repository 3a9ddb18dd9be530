# SPDX-License-Identifier: Apache-2.0
"""The verb doctor: checks what works on this machine, and shows how to fix what does not."""

from __future__ import annotations

from dataclasses import asdict

import click

from sentineld.base.errors import EXIT_STATUS
from sentineld.cli.output import Daemon, json_option, print_json
from sentineld.config import load
from sentineld.doctor.checks import examine, first_failure
from sentineld.doctor.findings import Finding, Status, System
from sentineld.doctor.service import ask

_COLOURS = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "red", Status.SKIP: "cyan"}


@click.command()
@json_option
@click.pass_obj
def doctor(daemon: Daemon, as_json: bool) -> None:
    """Check kernel, module, tiers, eBPF, memory, limits and daemon; print one line per check.

    The exit status is that of the first failing check, or 0.
    """
    config = load()
    findings = examine(
        System(tiers=asdict(config.tiers), ebpf=config.ebpf, daemon=ask(daemon.socket))
    )
    if as_json:
        print_json({"checks": [asdict(found) for found in findings]})
    else:
        for found in findings:
            click.echo(_line(found))
    failure = first_failure(findings)
    if failure is not None:
        raise SystemExit(EXIT_STATUS[failure.code])


def _line(found: Finding) -> str:
    status = click.style(f"{found.status:4}", fg=_COLOURS[found.status])
    fix = f" -> {found.fix}" if found.fix else ""
    return f"{status}  {found.check:14}  {found.cause}{fix}"
