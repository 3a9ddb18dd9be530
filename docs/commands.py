# SPDX-License-Identifier: Apache-2.0
"""Finds the click commands of sentinelctl, of sentineld and of their verbs (subcommands). The CLI
page, the man pages and the shell completions are made from these commands."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import click

from sentineld.cli.main import sentinelctl
from sentineld.daemon import sentineld

PROGRAMS = {"sentinelctl": sentinelctl, "sentineld": sentineld}
WIDTH = 78


def contexts(name: str) -> Iterator[click.Context]:
    """Yield the click context of a program, then the contexts of its verbs. Each context has
    its command in the attribute `command`."""
    return _contexts(PROGRAMS[name], name, None)


def subcommands(context: click.Context) -> list[tuple[str, click.Command]]:
    """(name, command) of each verb of a command; none if the command is not a group."""
    group = context.command
    if not isinstance(group, click.Group):
        return []
    found = [(name, group.get_command(context, name)) for name in group.list_commands(context)]
    return [(name, command) for name, command in found if command is not None]


def _contexts(
    command: click.Command, name: str, parent: click.Context | None
) -> Iterator[click.Context]:
    # click makes a help option with the option names (-h, --help) of a command's first context, and
    # caches it in the command object. So copy the command and clear the copy's cache: click then
    # makes a help option for the context below.
    command = copy.copy(command)
    vars(command)["_help_option"] = None
    settings = command.context_settings
    context = click.Context(
        command, info_name=name, parent=parent, terminal_width=WIDTH, **settings
    )
    context.max_content_width = WIDTH
    yield context
    for verb, found in subcommands(context):
        yield from _contexts(found, verb, context)
