# SPDX-License-Identifier: Apache-2.0
"""The verb calibrate: measures the memory nodes and writes the figures into the config.

The verb needs no daemon.
"""

from __future__ import annotations

import mmap
import os
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click

from sentineld.base.errors import SentinelError
from sentineld.base.units import format_bytes, parse_bytes
from sentineld.cli.output import json_option, print_json, print_table
from sentineld.cli.progress import Progress
from sentineld.config import load
from sentineld.host import sysfs
from sentineld.host.tiers import discover
from sentineld.migrate.bandwidth import NodeRates, node_rates, threads_allowed
from sentineld.migrate.births import birth_ns_per_byte
from sentineld.migrate.calibrate import SCRATCH_BYTES_MIN, Rates, measure
from sentineld.migrate.syscalls import BATCH_PAGES
from sentineld.model.tiers import Overlap, Tiers

OUTPUT = Path("/etc/sentineld/config.d/40-calibrated.toml")
HEAD = "# Measured by sentinelctl calibrate"
"""The first words of every file that calibrate writes. The verb overwrites only files that begin
with these words."""

SIZE_MIN_BYTES = 1 << 20
BATCHES = (64, 512, BATCH_PAGES, 8192)
"""Pages per move_pages call. BATCH_PAGES is the number that the daemon uses; the bandwidth for this
number is written to the config."""

SYS = Path("/sys")


@dataclass(frozen=True)
class Found:
    """The results of the measurements."""

    threads: int
    nodes: tuple[NodeRates, ...]
    tiers: Tiers | None  # None: the machine has one tier only
    migration: dict[int, Rates]  # pages per move_pages call -> bandwidth
    birth_ns_per_byte: float  # time per byte to fault in new pages; 0: unknown
    missing: tuple[str, ...]  # descriptions of the missing measurements

    def figures(self) -> dict[str, list[int] | float]:
        """Keys and values for the table [tiers] of the config.

        A tier of several nodes gets the mean of the nodes' figures, because a thread uses only
        one node at a time.
        """
        values: dict[str, list[int] | float] = {}
        groups = [tier.nodes for tier in self.tiers.tiers[:2]] if self.tiers else [
            tuple(rates.node for rates in self.nodes)
        ]  # fmt: skip
        for name, nodes in zip(("fast", "slow"), groups, strict=False):
            mine = [rates for rates in self.nodes if rates.node in nodes]
            if self.tiers:
                values[name] = list(nodes)
            for kind in ("read", "write"):
                measured = [getattr(rates, f"{kind}_bytes_per_s") for rates in mine]
                values[f"{name}_{kind}_bytes_per_s"] = float(f"{statistics.fmean(measured):.3g}")
        if BATCH_PAGES in self.migration:
            both = self.migration[BATCH_PAGES]
            slower = min(both.demote_bytes_per_s, both.promote_bytes_per_s)
            values["migration_bytes_per_s"] = float(f"{slower:.3g}")
        if self.birth_ns_per_byte:
            values["birth_ns_per_byte"] = float(f"{self.birth_ns_per_byte:.3g}")
        return values

    def toml(self) -> str:
        """The text of a file for config.d."""
        lines = [f"{HEAD} with {self.threads} threads. Repeat it after changes to the memory."]
        lines += [f"# Not measured: {words}" for words in self.missing]
        lines += ["", "[tiers]"]
        lines += [f"{key} = {value}" for key, value in self.figures().items()]
        return "\n".join(lines) + "\n"


@click.command()
@click.option("--dry-run", is_flag=True, help="Measure, but write nothing.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=OUTPUT,
    show_default=True,
    help="File to write. Only files written by calibrate are overwritten.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Config file whose [tiers] assigns nodes to tiers.  [default: the daemon's]",
)
@click.option(
    "--size",
    default="256MiB",
    show_default=True,
    help="Amount of memory to use for measuring each node.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="Number of measuring threads; should be the training's number of threads.  "
    "[default: one per CPU]",
)
@json_option
def calibrate(
    dry_run: bool,
    output: Path,
    config: Path | None,
    size: str,
    threads: int | None,
    as_json: bool,
) -> None:
    """Measure the memory nodes and write the figures into the config.

    On each node, measures the bandwidth of sequential reads, of writes and of random
    reads. Also measures the bandwidth of page migration between the two fastest tiers,
    with different numbers of pages per call, and the time of the first touch of new
    pages. The measurements take seconds. Run this verb on an idle machine, then restart
    the daemon.
    """
    size_bytes = parse_bytes(size)
    if size_bytes < SIZE_MIN_BYTES:
        least = f"give at least {SIZE_MIN_BYTES >> 20}MiB"
        raise SentinelError("usage", f"--size {size} is too small", least)
    if not dry_run:
        check_ours(output)
    with Progress("measuring") as progress:
        found = measured(config, size_bytes, threads or threads_allowed(), progress.say)
    if not dry_run:
        write(found.toml(), output, mode=0o644 if output == OUTPUT else None)
    if as_json:
        print_json(
            {
                "threads": found.threads,
                "nodes": [asdict(rates) for rates in found.nodes],
                "migration": [
                    {"batch_pages": pages, **asdict(rates)}
                    for pages, rates in found.migration.items()
                ],
                "birth_ns_per_byte": found.birth_ns_per_byte,
                "tiers": found.figures(),
                "missing": list(found.missing),
                "written": None if dry_run else str(output),
            }
        )
        return
    _print(found)
    click.echo("\n" + found.toml() if dry_run else f"\nwrote {output}; restart the daemon")


def measured(
    config: Path | None,
    size_bytes: int,
    threads: int,
    say: Callable[[str], None],
    sys_root: Path = SYS,
) -> Found:
    """Measure all nodes that have memory. Raises SentinelError if one of them cannot be measured or
    the config is invalid.

    say: called with the name of each measurement before it begins.
    """
    missing: list[str] = []
    tiers: Tiers | None = None
    try:
        # Select no variant of the timing model: discover() would raise an error if a variant needs
        # bandwidths that are unknown until they are measured below.
        overrides = replace(load(config).tiers, overlap=Overlap.NONE.value, moves_yield=False)
        tiers = discover(sys_root, asdict(overrides))
    except SentinelError as error:
        if error.code != "no-second-tier":
            raise
        missing.append("the slow tier and moves to it: the machine has one tier only")
    nodes = sysfs.memory_nodes(sys_root) or (0,)
    rates = []
    for node in nodes:
        say(f"measuring the bandwidth of node {node}")
        free = sysfs.node_meminfo(sys_root, node).get("MemFree", 2 * size_bytes)
        room = min(size_bytes, free // 2)
        if room < SIZE_MIN_BYTES:
            raise SentinelError(
                "failed",
                f"node {node} has {format_bytes(free)} free, too little for a measurement",
                "free some of its memory",
            )
        if room < size_bytes:
            missing.append(
                f"node {node} with more than {format_bytes(room)}, half of its free memory"
            )
        rates.append(node_rates(node, room, threads, alone=len(nodes) == 1))
    migration: dict[int, Rates] = {}
    if tiers is not None:
        for batch in BATCHES:
            say(f"measuring moves of {batch} pages per call")
            try:
                least = max(SCRATCH_BYTES_MIN, batch * mmap.PAGESIZE)
                migration[batch] = measure(tiers, max(size_bytes // 4, least), batch)
            except SentinelError as error:
                missing.append(f"moves of {batch} pages per call: {error.message}")
    birth_ns = 0.0
    say("measuring first touches of new pages")
    try:
        birth_ns = birth_ns_per_byte(max(size_bytes // 4, SIZE_MIN_BYTES))
    except OSError as error:
        missing.append(f"first touches of new pages: {error.strerror}")
    return Found(threads, tuple(rates), tiers, migration, birth_ns, tuple(missing))


def check_ours(file: Path) -> None:
    """Raise SentinelError if the file exists but was not written by calibrate, or if it cannot be
    read or written."""
    try:
        if file.exists() and not file.read_text().startswith(HEAD):
            raise SentinelError(
                "usage", f"{file} was not written by calibrate", "name another file with -o"
            )
    except (OSError, UnicodeDecodeError) as error:
        raise SentinelError(
            "failed", f"cannot read {file}: {error}", "name another file with -o"
        ) from None
    folder = file.parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not os.access(folder, os.W_OK):
        raise SentinelError(
            "not-permitted", f"cannot write to {folder}", "run it as root, or use -o or --dry-run"
        )


def write(text: str, file: Path, mode: int | None = None) -> None:
    """Write the file atomically. mode: its permissions, and those of a new folder, which can also
    be searched; None: as the umask says. All users read the daemon's configuration. Raises
    SentinelError."""
    temporary = file.with_name(f".{file.name}.part")
    try:
        new = not file.parent.exists()
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text)
        if mode is not None:
            temporary.chmod(mode)
            if new:
                file.parent.chmod(mode | 0o111)
        temporary.replace(file)
    except OSError as error:
        raise SentinelError(
            "failed", f"cannot write {file}: {error.strerror}", "name another file with -o"
        ) from None


def _print(found: Found) -> None:
    def rate(value: float) -> str:
        return f"{value / 1e9:.2f}"

    click.echo(f"GB/s, {found.threads} threads")
    print_table(
        ["NODE", "READ", "WRITE", "RANDOM"],
        [
            [
                one.node,
                rate(one.read_bytes_per_s),
                rate(one.write_bytes_per_s),
                rate(one.random_bytes_per_s),
            ]
            for one in found.nodes
        ],
    )
    if found.migration:
        click.echo("")
        print_table(
            ["PAGES PER CALL", "DEMOTED", "PROMOTED"],
            [
                [pages, rate(rates.demote_bytes_per_s), rate(rates.promote_bytes_per_s)]
                for pages, rates in found.migration.items()
            ],
        )
    if found.birth_ns_per_byte:
        click.echo(f"\nfirst touch of new pages: {found.birth_ns_per_byte:.3f} ns per byte")
    for words in found.missing:
        click.echo(f"not measured: {words}")
