# SPDX-License-Identifier: Apache-2.0
"""The command sentinelctl and its table of verbs."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

import click

from sentineld import __version__
from sentineld.cli.output import Daemon
from sentineld.config import Config
from sentineld.entry import run_command

VERBS = {
    "status": "show",
    "run": "run",
    "attach": "manage",
    "detach": "manage",
    "meter": "manage",
    "tensors": "show",
    "plan": "show",
    "top": "top",
    "record": "record",
    "report": "report",
    "simulate": "simulate",
    "advise": "advise",
    "doctor": "doctor",
    "calibrate": "calibrate",
}
"""The module of each verb. Several verbs may share a module."""


class Verbs(click.Group):
    """Imports a verb's module only when the verb is used.

    Most verbs do not need numpy, whose import is slow.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all verbs."""
        return sorted(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a verb, or None if no verb has that name."""
        if cmd_name not in VERBS:
            return None
        module = import_module(f"sentineld.cli.{VERBS[cmd_name]}")
        command: click.Command = getattr(module, cmd_name)
        return command


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sentinelctl")
@click.option(
    "--socket",
    type=click.Path(path_type=Path, readable=False),
    envvar="SENTINELD_CONTROL_SOCKET",
    default=Path(Config.control_socket),
    show_default=True,
    show_envvar=True,
    help="The daemon's control socket.",
)
@click.pass_context
def sentinelctl(context: click.Context, socket: Path) -> None:
    """Manage the tiered memory of training processes.

    If NO_COLOR is set, the output has no colours. Tables are wrapped to the terminal's width.
    """
    if os.environ.get("NO_COLOR"):
        context.color = False
    context.obj = Daemon(socket)


def main() -> None:
    """Entry point of the command sentinelctl. A SentinelError is printed as one line on stderr; its
    code determines the exit status."""
    run_command(sentinelctl)
