# SPDX-License-Identifier: Apache-2.0
"""The daemon's configuration: TOML files; unknown keys and wrong types are errors."""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from sentineld.base.errors import SentinelError
from sentineld.base.units import FastBudget
from sentineld.model.attach_rule import AttachRule
from sentineld.model.tiers import Overlap

CONFIG_FILE = Path("/etc/sentineld/config.toml")
PLAN_MEMORY_BYTES_MIN = 256 << 20
"""Lower limit of plan_memory_bytes. Importing numpy and scipy alone takes half of this memory."""


@dataclass(frozen=True)
class TierOverrides:
    """The configuration's table [tiers]. Most values replace values that were found on the machine;
    `emulated`, `paged` and `swap` select tiers that are not NUMA nodes."""

    fast: tuple[int, ...] = ()  # node IDs; empty: as discovered
    slow: tuple[int, ...] = ()
    migration_bytes_per_s: float = 0.0  # 0: measured at start, or the preset's value
    fast_read_bytes_per_s: float = 0.0  # 0 here and in the next three fields: no override
    fast_write_bytes_per_s: float = 0.0
    slow_read_bytes_per_s: float = 0.0
    slow_write_bytes_per_s: float = 0.0
    # 0: measured on emulated tiers; on other tiers, plans assume that births take no time.
    birth_ns_per_byte: float = 0.0
    # Variants of the timing model; see Tiers.
    overlap: str = "none"  # none, compute, tiers
    moves_yield: bool = False
    emulated: str = ""  # preset of emulated tiers; "": no emulated tiers
    emulated_threads: int = 1  # threads of the training; scales the preset's bandwidths
    paged: str = ""  # directory for the files of paged tiers; "": no paged tiers
    paged_bytes: int = 0  # maximum size of a process's file; 0: limited only by the disk
    swap: bool = False  # true: tiers are memory and swap, for processes without the shim


SCAN_CPU_SHARE_MIN = 0.001
RULE_HINT = "write [[attach]] above the keys of each rule"

KINDS = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}
"""The kind of value that a setting needs, as text, by the type of the setting's default value."""
RANGES = {
    "metrics_port": (0, 65_535),
    "barrier_timeout_ms": (0, 60_000),  # the shim never waits longer than 60 s (boundary.c)
    "plan_timeout_s": (1, 86_400),
    "plan_processes": (1, 1024),
    "plan_memory_bytes": (PLAN_MEMORY_BYTES_MIN, 1 << 60),
    "plan_nice": (0, 19),
    "tiers.emulated_threads": (1, 4096),
    "tiers.paged_bytes": (0, 1 << 60),
}
"""The smallest and the largest permitted value of each integer setting, except log_records."""


@dataclass(frozen=True)
class Config:
    """All settings with their defaults; docs/config.md describes each."""

    shim_socket: str = "/run/sentineld/shim.sock"
    control_socket: str = "/run/sentineld/control.sock"
    socket_group: str = "sentineld"
    state_dir: str = "/var/lib/sentineld"
    metrics_address: str = "127.0.0.1"
    metrics_port: int = 9464  # 0: no metrics
    ebpf: str = "auto"  # auto, off, required
    policy: str = "auto"
    fast: str = "20%"
    shared_fast: str = ""  # budget for all sessions without --fast; "": each has its own
    auto_attach: bool = False
    barrier_timeout_ms: int = 2000
    log_records: int = 1 << 20
    policy_fallback: bool = True
    plan_timeout_s: int = 600
    plan_processes: int = 2
    plan_memory_bytes: int = 4 << 30
    plan_nice: int = 10
    scan_cpu_share: float = 0.02  # of one core, for each session of policy temperature
    huge_pages: str = "auto"  # "auto": only on emulated tiers; "on": also on NUMA nodes; "off"
    attach: tuple[AttachRule, ...] = ()  # the first rule that matches a process applies
    tiers: TierOverrides = field(default_factory=TierOverrides)


TABLES = ("attach", "tiers")
"""The keys of Config whose values are tables."""


RELOADABLE = frozenset(
    {
        "attach",
        "auto_attach",
        "barrier_timeout_ms",
        "fast",
        "huge_pages",
        "log_records",
        "plan_memory_bytes",
        "plan_nice",
        "plan_timeout_s",
        "policy",
        "policy_fallback",
        "scan_cpu_share",
    }
)
"""Keys whose new values a running daemon uses after a reload. The other keys need a restart."""


def load(path: Path | None = None) -> Config:
    """Read the settings from a file, then from config.d/*.toml in its directory, in name order.

    Later files override earlier ones. The rules [[attach]] of all files form one list.

    path: default /etc/sentineld/config.toml, which need not exist. Raises
    SentinelError("bad-config") if a file or a setting is invalid, or if `path` does not exist.
    """
    return load_with_origins(path)[0]


def load_with_origins(path: Path | None = None) -> tuple[Config, dict[str, Path]]:
    """Like load(); also returns the file that sets each key, such as "fast" or "tiers.fast". Keys
    that no file sets are missing. The key "attach" is missing, too, because each rule has its own
    origin."""
    config = Config()
    origins: dict[str, Path] = {}
    main = path or CONFIG_FILE
    try:
        if path is not None and not path.exists():
            raise SentinelError(
                "bad-config", f"{path} does not exist", "name another file with --config"
            )
        folder = sorted((main.parent / "config.d").glob("*.toml"))
        files = [file for file in [main, *folder] if file.exists()]
    except OSError as error:
        raise SentinelError("bad-config", f"{main}: {error.strerror}") from None
    for file in files:
        config, keys = _merge(config, file)
        _check(file, config)
        origins.update(dict.fromkeys(keys, file))
    return config, origins


def with_reloadable(config: Config, new: Config) -> Config:
    """`config` with the RELOADABLE values of `new`."""
    return replace(config, **{key: getattr(new, key) for key in RELOADABLE})


def changed_keys(before: Config, after: Config) -> list[str]:
    """The keys whose values differ, such as "fast" or "tiers.fast", in the order of the fields."""
    keys = []
    for key, value in vars(before).items():
        new = getattr(after, key)
        if key == "tiers":
            keys += [f"tiers.{k}" for k, v in vars(value).items() if getattr(new, k) != v]
        elif new != value:
            keys.append(key)
    return keys


def _merge(config: Config, file: Path) -> tuple[Config, list[str]]:
    """The configuration after the file's settings were applied, and the keys of these settings."""
    try:
        table = tomllib.loads(file.read_text())
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SentinelError("bad-config", f"{file}: {error}") from None
    tiers, rules = table.pop("tiers", None), table.pop("attach", [])
    values = _typed(file, "", Config, table)
    keys = list(values)
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        raise SentinelError("bad-config", f"{file}: attach is not a list of tables", RULE_HINT)
    numbered = (_rule(f"{file}: attach rule {at}", rule) for at, rule in enumerate(rules, 1))
    values["attach"] = (*config.attach, *numbered)
    if tiers is not None:
        if not isinstance(tiers, dict):
            raise SentinelError("bad-config", f"{file}: tiers is not a table", "write [tiers]")
        values["tiers"] = replace(config.tiers, **_typed(file, "tiers.", TierOverrides, tiers))
        keys += [f"tiers.{name}" for name in tiers]
    return replace(config, **values), keys


def _rule(place: str, table: dict[str, Any]) -> AttachRule:
    """Make the rule of a table [[attach]]. place: file and number of the rule. Raises
    SentinelError."""
    if type(table.get("user")) is int:
        table = {**table, "user": str(table["user"])}
    values = _typed(place, "", AttachRule, table)
    for key, value in values.items():
        if value == "":
            raise SentinelError("bad-config", f"{place}: {key} is empty", "leave out the key")
    rule = AttachRule(**values, origin=place)
    if rule.user.startswith("-"):
        raise SentinelError("bad-config", f"{place}: user = {rule.user}", "use 0 or more")
    if rule.cgroup and not rule.cgroup.startswith("/"):
        raise SentinelError(
            "bad-config", f"{place}: cgroup = {rule.cgroup!r}", "give a path that begins with /"
        )
    if rule.cgroup == "/":
        raise SentinelError(
            "bad-config",
            f"{place}: cgroup = '/' matches no process",
            "leave out the key to match processes in every cgroup",
        )
    if "/" in rule.unit:
        raise SentinelError(
            "bad-config", f"{place}: unit = {rule.unit!r}", "give a unit, or the key cgroup"
        )
    if not rule.manage and (rule.policy or rule.fast):
        unused = "policy" if rule.policy else "fast"
        raise SentinelError(
            "bad-config",
            f"{place}: {unused} has no effect, because manage = false",
            "remove one of the two",
        )
    if rule.fast:
        _check_budget(place, "fast", rule.fast)
    return rule


def _typed(file: Path | str, prefix: str, kind: type, table: dict[str, Any]) -> dict[str, Any]:
    default = kind()
    defaults = {
        f.name: getattr(default, f.name) for f in fields(kind) if f.name not in (*TABLES, "origin")
    }
    values = {}
    for key, value in table.items():
        if key not in defaults:
            close = difflib.get_close_matches(key, defaults, n=1)
            raise SentinelError(
                "bad-config",
                f"{file}: unknown key {prefix}{key}",
                f"did you mean {prefix}{close[0]}?" if close else _known(prefix, defaults),
            )
        values[key] = _converted(file, prefix + key, value, defaults[key])
    return values


def _known(prefix: str, names: Iterable[str]) -> str:
    return "known keys: " + ", ".join(prefix + name for name in names)


def _converted(file: Path | str, key: str, value: Any, default: Any) -> Any:
    if isinstance(default, tuple):
        if isinstance(value, list) and all(type(node) is int and node >= 0 for node in value):
            return tuple(value)
        raise SentinelError("bad-config", f"{file}: {key} must be a list of node ids")
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if type(value) is not type(default):
        raise SentinelError(
            "bad-config", f"{file}: {key} must be {KINDS[type(default)]}, not {value!r}"
        )
    return value


def _check(file: Path, config: Config) -> None:
    """Check the settings after `file` was applied. Before that they were valid, so any error is in
    `file`."""

    def value_of(setting: str) -> Any:
        owner = config.tiers if setting.startswith("tiers.") else config
        return getattr(owner, setting.removeprefix("tiers."))

    def refuse(setting: str, hint: str) -> SentinelError:
        problem = f"{file}: {setting} = {value_of(setting)!r}"
        return SentinelError("bad-config", problem, hint)

    for setting, default in vars(Config()).items():
        # An empty metrics_address would serve the metrics on all addresses of the machine.
        if default and value_of(setting) == "":
            raise SentinelError("bad-config", f"{file}: {setting} is empty", "leave out the key")
    if config.ebpf not in ("auto", "off", "required"):
        raise refuse("ebpf", "use auto, off or required")
    if config.huge_pages not in ("auto", "on", "off"):
        raise refuse("huge_pages", "use auto, on or off")
    if config.tiers.overlap not in list(Overlap):
        raise refuse("tiers.overlap", "use none, compute or tiers")
    if not SCAN_CPU_SHARE_MIN <= config.scan_cpu_share <= 1:
        raise refuse("scan_cpu_share", f"use {SCAN_CPU_SHARE_MIN} to 1")
    records = config.log_records
    if not 4096 <= records <= 1 << 24 or records & (records - 1):
        raise refuse("log_records", "use a power of two, 4096 to 16777216")
    for setting, (least, most) in RANGES.items():
        if not least <= value_of(setting) <= most:
            raise refuse(setting, f"use {least} to {most}")
    for name, value in vars(config.tiers).items():
        if "_per_" in name and not 0 <= value < math.inf:
            raise refuse(f"tiers.{name}", "use a finite number, 0 or more")
    _check_budget(file, "fast", config.fast)
    if config.shared_fast:
        _check_budget(file, "shared_fast", config.shared_fast)


def _check_budget(place: Path | str, setting: str, value: str) -> None:
    try:
        FastBudget.parse(value)
    except SentinelError as error:
        problem = f"{place}: {setting}: {error.message}"
        raise SentinelError("bad-config", problem, error.hint) from None
