# SPDX-License-Identifier: Apache-2.0
"""The verb policy: lists the policies. Needs no daemon."""

from __future__ import annotations

import sys
from inspect import cleandoc

import click

from sentineld.cli.output import json_option, print_json, print_table
from sentineld.plan.policy import Policy
from sentineld.policies.registry import manages, names
from sentineld.policies.registry import policy as policy_by_name


@click.group()
def policy() -> None:
    """Show the policies."""


@policy.command("list")
@json_option
def list_policies(as_json: bool) -> None:
    """List the policies.

    USE is "plans" if the policy can manage a process, and "simulator" if only `sentinelctl
    simulate` and `advise` can use it. BUDGET says whether its plans stay within the budget.
    The policy temperature, for processes without the shim, makes no plans and is not listed.
    """
    rows = [_row(policy_by_name(name)) for name in names()]
    if as_json:
        print_json({"policies": rows})
        return
    print_table(
        ("NAME", "USE", "BUDGET", "SUMMARY"),
        [
            (
                row["name"],
                "plans" if row["manages"] else "simulator",
                "kept" if row["charges_budget"] else "not kept",
                row["summary"],
            )
            for row in rows
        ],
    )


def _row(found: Policy) -> dict[str, str | bool]:
    # The first sentence of each policy's module is "Policy `NAME`: SUMMARY".
    text = cleandoc(sys.modules[type(found).__module__].__doc__ or "")
    summary = text.partition("\n\n")[0].partition(": ")[2]
    return {
        "name": found.name,
        "manages": manages(found),
        "charges_budget": found.charges_budget,
        "summary": " ".join(summary.split()),
    }
