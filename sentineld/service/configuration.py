# SPDX-License-Identifier: Apache-2.0
"""Reads the daemon's whole configuration and checks it, at the start and on SIGHUP."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from sentineld.base.errors import SentinelError
from sentineld.base.log_events import LogEvent, about
from sentineld.config import RELOADABLE, Config, changed_keys, load
from sentineld.machine.choose import substrate_of, with_tiers_option
from sentineld.machine.machine import Machine
from sentineld.policies.registry import managing_policy
from sentineld.service.notify import notify

log = logging.getLogger(__name__)


def read_config(path: Path | None, tiers: str | None) -> Config:
    """The configuration with the daemon's options applied.

    path: see load(). tiers: the option --tiers. Raises SentinelError if a file, a setting or the
    option is invalid.
    """
    config = with_tiers_option(load(path), tiers)
    substrate_of(config)
    _require_policy("", config.policy)
    for rule in config.attach:
        if rule.policy:
            _require_policy(f"{rule.origin}: ", rule.policy)
    return config


def _require_policy(place: str, name: str) -> None:
    """Raise SentinelError("bad-config") if a configured policy cannot manage a process."""
    try:
        managing_policy(name)
    except SentinelError as error:
        raise SentinelError("bad-config", f"{place}policy: {error.message}", error.hint) from None


class Reloader:
    """Replaces the running daemon's settings with the settings that the files contain now."""

    def __init__(self, machine: Machine, path: Path | None, tiers: str | None) -> None:
        """path, tiers: see read_config()."""
        self._machine = machine
        self._path = path
        self._tiers = tiers
        self.problems: list[str] = []
        """Why the last reload failed, or which changes need a restart; for `sentinelctl status`."""

    def reload(self) -> None:
        """Read and check all files, then use the new settings. If a file is invalid, no setting
        changes, and the error is logged. Settings that need a restart keep their values, and their
        keys are logged.

        Tells the service manager when the reload begins and ends.
        """
        notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            self._reload()
        except SentinelError as error:
            self.problems = [f"the configuration was not reloaded: {error}"]
            log.error("%s", self.problems[0], extra=about(LogEvent.CONFIG_NOT_RELOADED))
        except Exception as error:
            # Catch every error: the daemon keeps its settings, and the next reload has to work.
            self.problems = [f"the configuration was not reloaded: internal error: {error}"]
            log.exception(
                "the configuration was not reloaded: internal error",
                extra=about(LogEvent.INTERNAL_ERROR),
            )
        finally:
            notify("READY=1")

    def _reload(self) -> None:
        before = self._machine.config
        read = read_config(self._path, self._tiers)
        self._machine.configure(read)
        replaced = changed_keys(before, self._machine.config)
        log.info(
            "the configuration was reloaded; changed: %s",
            ", ".join(replaced) or "nothing",
            extra=about(LogEvent.CONFIG_RELOADED),
        )
        kept = [key for key in changed_keys(before, read) if key not in RELOADABLE]
        self.problems = []
        if kept:
            self.problems = [f"changed settings need a restart of the daemon: {', '.join(kept)}"]
            log.warning("%s", self.problems[0], extra=about(LogEvent.RESTART_NEEDED))
