# SPDX-License-Identifier: Apache-2.0
"""The verbs config and version: the settings, and the versions of the programs."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from sentineld import __version__
from sentineld.base.errors import SentinelError
from sentineld.cli.output import Daemon, json_option, print_json
from sentineld.config import load_with_origins


@click.group()
def config() -> None:
    """Show the daemon's configuration."""


@config.command()
@click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path),
    help="Configuration file.  [default: /etc/sentineld/config.toml]",
)
@click.option("--origin", is_flag=True, help="Also show the file that sets each value.")
@json_option
def show(path: Path | None, origin: bool, as_json: bool) -> None:
    """Show all settings as TOML, with the values that the files have now.

    A running daemon uses the values that the files had when it started or last reloaded
    its configuration (`systemctl reload sentineld`). Its options, such as --tiers, can
    replace some of these values.
    """
    settings, files = load_with_origins(path)
    origins: dict[str, Any] = {key: str(file) for key, file in files.items()}
    values = asdict(settings)
    rules, tiers = values.pop("attach"), values.pop("tiers")
    places = [rule.pop("origin") for rule in rules]
    if as_json:
        answer = {"config": {**values, "attach": rules, "tiers": tiers}}
        print_json({**answer, "origins": {**origins, "attach": places}} if origin else answer)
        return
    if not rules:
        values["attach"] = []
    for line in _toml(values, "", origins if origin else None):
        click.echo(line)
    for rule, place in zip(rules, places, strict=True):
        click.echo(f"\n[[attach]]{f'  # {place}' if origin else ''}")
        # Leave out empty keys: most conditions of a rule are empty.
        for line in _toml({key: value for key, value in rule.items() if value != ""}, "", None):
            click.echo(line)
    click.echo("\n[tiers]")
    for line in _toml(tiers, "tiers.", origins if origin else None):
        click.echo(line)


def _toml(values: dict[str, Any], prefix: str, origins: dict[str, str] | None) -> Iterator[str]:
    for key, value in values.items():
        # Values of these types have the same syntax in JSON and in TOML.
        line = f"{key} = {json.dumps(value, ensure_ascii=False)}"
        if origins is not None:
            line += f"  # {origins.get(prefix + key, 'default')}"
        yield line


@click.command()
@json_option
@click.pass_obj
def version(daemon: Daemon, as_json: bool) -> None:
    """Show the versions of sentinelctl, Python and the running daemon."""
    try:
        running = daemon.ask("status")["version"]
        problem = ""
    except SentinelError as error:
        running, problem = None, error.message
    if as_json:
        answer = {"sentinelctl": __version__, "sentineld": running}
        print_json({**answer, "python": platform.python_version()})
        return
    click.echo(f"sentinelctl {__version__}, Python {platform.python_version()}")
    click.echo(f"sentineld {running}" if running is not None else f"sentineld unknown: {problem}")
