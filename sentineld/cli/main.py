# SPDX-License-Identifier: Apache-2.0
"""The command sentinelctl and its table of verbs."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sentineld import __version__
from sentineld.cli.output import Daemon
from sentineld.config import Config
from sentineld.entry import run_command

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

VERBS = {
    "status": ("show", "Show the daemon, its tiers and its sessions."),
    "list": ("show", "List the sessions."),
    "version": ("settings", "Show the versions of sentinelctl, Python and the running daemon."),
    "config": ("settings", "Show the daemon's configuration."),
    "policy": ("policy", "Show the policies."),
    "run": (
        "run",
        "Run COMMAND under the shim and attach each of its processes that trains a model.",
    ),
    "attach": ("manage", "Start managing the training process PID, which must run under the shim."),
    "detach": (
        "manage",
        "Stop managing the process PID or a group; the processes continue to run.",
    ),
    "meter": ("manage", "Count PID's accesses to tensor pages by tier, for whole managed steps."),
    "tensors": ("show", "List the tensors of one profiled step of PID, largest first."),
    "plan": ("show", "Explain what the daemon does with a session's pages."),
    "top": ("top", "Watch the sessions live, and act on them."),
    "record": ("record", "Record training steps of PID into a trace file."),
    "report": ("report", "Show the contents of the trace FILE; without a command, its summary."),
    "simulate": ("simulate", "Replay the step of TRACE under a policy, in virtual time."),
    "advise": ("advise", "Show how much fast memory the training recorded in TRACE needs."),
    "doctor": (
        "doctor",
        "Check kernel, module, tiers, eBPF, memory, limits and daemon; print one line per check.",
    ),
    "calibrate": ("calibrate", "Measure the memory nodes and write the figures into the config."),
}
"""The module and the summary of each verb. Several verbs may share a module. A summary is the first
sentence of the verb's help."""
FUNCTIONS = {"list": "list_sessions"}
"""By verb: the name of the verb's function, if it differs from the verb."""


class Verbs(click.Group):
    """Imports a verb's module only when the verb is used.

    Most verbs do not need numpy, whose import is slow. Neither the list of verbs in the help nor
    the completion of a verb's name in a shell imports the verbs' modules.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all verbs."""
        return sorted(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a verb, or None if no verb has that name."""
        if cmd_name not in VERBS:
            return None
        module = import_module(f"sentineld.cli.{VERBS[cmd_name][0]}")
        command: click.Command = getattr(module, FUNCTIONS.get(cmd_name, cmd_name))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs with their summaries."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, VERBS[name][1]) for name in self.list_commands(ctx)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The verbs and options that begin with `incomplete`."""
        from click.shell_completion import CompletionItem

        verbs = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        found = [CompletionItem(name, help=VERBS[name][1]) for name in verbs]
        return found + click.Command.shell_complete(self, ctx, incomplete)


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
