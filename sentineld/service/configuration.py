# SPDX-License-Identifier: Apache-2.0
"""Reads the daemon's whole configuration and checks it."""

from __future__ import annotations

from pathlib import Path

from sentineld.base.errors import SentinelError
from sentineld.config import Config, load
from sentineld.machine.choose import substrate_of, with_tiers_option
from sentineld.policies.registry import managing_policy


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
