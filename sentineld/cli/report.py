# SPDX-License-Identifier: Apache-2.0
"""The verb report: shows the contents of a trace file. Needs no daemon."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import click
import numpy as np

from sentineld.base.units import FastBudget, format_bytes
from sentineld.cli.output import json_option, print_json, print_table
from sentineld.cli.simulate import fast_option, tiers_option
from sentineld.host.presets import named_tiers
from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.planner.requests import PlanRequest
from sentineld.profile.faults import tensor_faults
from sentineld.profile.trace import Trace, profile_of
from sentineld.profile.trace_file import load_trace, require_writable
from sentineld.report.chrome import Exporter
from sentineld.report.chrome_file import write_events
from sentineld.report.compare_sources import PAGES_MIN, DifferenceCause, agreement
from sentineld.report.heatmap import Heatmap
from sentineld.report.heatmap import heatmap as make_heatmap
from sentineld.report.labels import KINDS, Labels, label
from sentineld.report.page import write_page
from sentineld.report.page_data import page_data
from sentineld.report.page_sources import trace_report
from sentineld.report.plots import draw_heatmap, draw_timeline, require_picture
from sentineld.report.summary import summary_json, summary_lines
from sentineld.report.tensors import COLUMNS, sort_rows, tensor_rows
from sentineld.report.terminal import heatmap_lines, timeline_lines
from sentineld.report.timeline import timeline as make_timeline

NAME_WIDTH_MAX = 44
PICTURE_ROWS = 400
TERMINAL_ROWS = 32
LIVES_SHOWN = 500
NAMES_SHOWN = 4

picture_option = click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw into this .png or .svg file instead of the terminal (needs matplotlib).",
)


@dataclass(frozen=True)
class Recorded:
    """A trace file and the data derived from it."""

    path: Path

    @cached_property
    def trace(self) -> Trace:
        """The file's contents. Raises SentinelError."""
        return load_trace(self.path)

    @cached_property
    def profile(self) -> Profile:
        """The profile of the trace's access step. Raises SentinelError."""
        return profile_of(self.trace)

    @cached_property
    def labels(self) -> Labels:
        """The tensors' names and kinds."""
        return label(self.trace, self.profile)

    @property
    def title(self) -> str:
        """The title of pictures."""
        name = _shortened(self.path.name, NAME_WIDTH_MAX)
        return f"process {self.trace.facts.get('pid', '?')}, {name}"


@click.group(invoke_without_command=True)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.pass_context
def report(context: click.Context, file: Path) -> None:
    """Show the contents of the trace FILE; without a command, its summary.

    `sentinelctl record` writes such files.
    """
    context.obj = Recorded(file)
    if context.invoked_subcommand is None:
        context.invoke(summary)


@report.command()
@json_option
@click.pass_obj
def summary(recorded: Recorded, as_json: bool) -> None:
    """Summarise the recording, and show the share of the accesses that belong to known tensors."""
    if as_json:
        print_json({"file": str(recorded.path), **summary_json(recorded.trace)})
        return
    for line in summary_lines(recorded.trace):
        click.echo(line)


@report.command()
@click.option(
    "--sort",
    type=click.Choice(COLUMNS),
    default="bytes",
    show_default=True,
    help="Column to sort by.",
)
@click.option("--reverse", is_flag=True, help="Reverse the order.")
@click.option("--top", type=click.IntRange(min=1), help="Show only the first N tensors.")
@json_option
@click.pass_obj
def tensors(recorded: Recorded, sort: str, reverse: bool, top: int | None, as_json: bool) -> None:
    """List the step's tensors: size, lifetime, accesses.

    LIFE is the lifetime in stretches. LAYERS is the number of different layers in these
    stretches. PAGES counts sampled accesses: one per page and stretch. FAULTS is the mean
    number of page faults of all kinds in a step that was recorded without sampling; --json
    lists them by kind. HOTNESS is the number of bytes read and written in a step, divided by
    the tensor's size.
    """
    found = tensor_faults(recorded.trace)
    rows = sort_rows(tensor_rows(recorded.profile, recorded.labels, found), sort, reverse)
    shown = rows[:top]
    if as_json:
        print_json({"count": len(rows), "tensors": [row.to_json() for row in shown]})
        return
    print_table(
        (
            *("NAME", "KIND", "BYTES", "LIFE", "LAYERS", "READ", "WRITTEN", "PAGES", "FAULTS"),
            *("HOTNESS", "DIES"),
        ),
        [
            (
                _shortened(row.name, NAME_WIDTH_MAX),
                row.kind,
                format_bytes(row.bytes),
                row.boundaries,
                row.layers,
                format_bytes(row.bytes_read),
                format_bytes(row.bytes_written),
                row.page_accesses,
                "-" if row.faults is None else f"{row.fault_count:.4g}",
                f"{row.hotness:.2f}",
                _shortened(row.dies, NAME_WIDTH_MAX) or "-",
            )
            for row in shown
        ],
    )
    if len(shown) < len(rows):
        click.echo(f"and {len(rows) - len(shown)} more")


@report.command()
@click.option(
    "--rows",
    type=click.IntRange(1, 4000),
    help="Number of rows; each row is a range of addresses.",
)
@picture_option
@json_option
@click.pass_obj
def heatmap(recorded: Recorded, rows: int | None, output: Path | None, as_json: bool) -> None:
    """Show which pages each layer accesses, by address and layer."""
    if output is not None:
        require_picture(output)
        heat = make_heatmap(recorded.trace, rows or PICTURE_ROWS)
        draw_heatmap(heat, recorded.profile, recorded.title, output)
        _say_written(output, as_json)
        return
    heat = make_heatmap(recorded.trace, rows or TERMINAL_ROWS)
    if as_json:
        print_json(_heatmap_json(heat))
        return
    width = shutil.get_terminal_size((100, 40)).columns
    for line in heatmap_lines(heat, recorded.profile, width):
        click.echo(line)


@report.command("agreement")
@json_option
@click.pass_obj
def show_agreement(recorded: Recorded, as_json: bool) -> None:
    """Compare the kernel module's samples with the framework's report, by tensor and layer."""
    found = agreement(recorded.trace)
    if as_json:
        print_json(found.to_json())
        return
    click.echo(
        f"the framework reports {found.pairs} pairs of tensor (of {PAGES_MIN} pages or more) and "
        f"layer; the module saw {found.seen_share:.2%} of them"
    )
    for why in DifferenceCause:
        missed = [one for one in found.differences if one.why is why]
        if missed:
            names = sorted({recorded.labels.names[one.tensor] for one in missed})
            shown = ", ".join(_shortened(name, NAME_WIDTH_MAX) for name in names[:NAMES_SHOWN])
            more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
            click.echo(f"  {len(missed)} missing: {why}: {shown}{more}")


@report.command()
@picture_option
@json_option
@click.pass_obj
def timeline(recorded: Recorded, output: Path | None, as_json: bool) -> None:
    """Show the live bytes of each kind of tensor over one step."""
    line = make_timeline(recorded.profile, recorded.labels)
    if output is not None:
        require_picture(output)
        draw_timeline(line, recorded.profile, recorded.title, output)
        _say_written(output, as_json)
        return
    if as_json:
        print_json(
            {
                "times_ns": np.rint(line.times_ns).astype(np.int64).tolist(),
                "live_bytes": {
                    kind: line.live[index].tolist()
                    for index, kind in enumerate(KINDS)
                    if line.live[index].any()
                },
                "peak_bytes": int(line.total.max()),
            }
        )
        return
    width = shutil.get_terminal_size((100, 40)).columns
    for text in timeline_lines(line, recorded.profile, width):
        click.echo(text)


@report.command("trace-export")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="File to write (.json or .json.gz).",
)
@click.option(
    "--beside",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File written by torch.profiler's export_chrome_trace; its events are included.",
)
@click.option(
    "--top",
    type=click.IntRange(min=0),
    default=LIVES_SHOWN,
    show_default=True,
    help="Show only this number of tensors, the largest ones.",
)
@json_option
@click.pass_obj
def trace_export(
    recorded: Recorded, output: Path, beside: Path | None, top: int, as_json: bool
) -> None:
    """Write Chrome trace events, for Perfetto (ui.perfetto.dev) or chrome://tracing.

    Steps, calls of layers and lifetimes of tensors become slices, and live bytes by kind
    become a counter. Times use the clock that torch.profiler uses in the recorded process. If
    the file given with --beside was recorded at another time, the trace's events are
    shifted so that both recordings start together.
    """
    rows = sort_rows(tensor_rows(recorded.profile, recorded.labels), "bytes")[:top]
    exporter = Exporter(recorded.trace, recorded.profile, recorded.labels, rows)
    written = write_events(exporter, output, beside)
    if as_json:
        print_json({"file": str(output), **vars(written)})
        return
    click.echo(f"wrote {output}: {written.events} events, and {written.beside} from the profiler")
    if written.shifted_us:
        click.echo(
            f"the two files are from different times: the trace's events were shifted by "
            f"{written.shifted_us / 1e6:.3f} s"
        )


@report.command("html")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="HTML file to write; an existing file is replaced.",
)
@click.option("--policy", help="Make a plan with this policy and show it, too.")
@tiers_option
@fast_option
@json_option
@click.pass_obj
def html_page(
    recorded: Recorded,
    output: Path,
    policy: str | None,
    tiers_name: str,
    fast: str,
    as_json: bool,
) -> None:
    """Write an HTML page: timeline, heatmap and table of tensors.

    The HTML page is one file and loads nothing from the network. The timeline shows the live
    bytes of each kind of tensor. The heatmap shows which memory pages each layer accesses,
    and the names of the tensors under the mouse pointer. The table can be sorted and
    searched. --policy makes a plan; the HTML page then also shows live bytes by tier, the
    planned moves, the tier of each memory page in each layer, and the reason for each
    tensor's placement. --tiers and --fast apply to this plan.
    """
    require_writable(output)
    plan = None if policy is None else _planned(recorded, policy, tiers_name, fast)
    content = trace_report(recorded.trace, recorded.profile, recorded.title, plan)
    write_page(page_data(content), output)
    _say_written(output, as_json)


def _planned(recorded: Recorded, policy: str, tiers_name: str, fast: str) -> Plan:
    """A plan for the recorded step. Raises SentinelError."""
    budget_bytes = FastBudget.parse(fast).resolve(recorded.profile.peak_bytes)
    tiers = named_tiers(tiers_name, recorded.trace.threads)
    return PlanRequest(policy, recorded.profile, tiers, budget_bytes).answer()


def _heatmap_json(heat: Heatmap) -> dict[str, Any]:
    return {
        "source": heat.source,
        "addresses": [heat.address(row) for row in range(len(heat.live))],
        "pages": np.diff(heat.edges).tolist(),
        "live": np.round(heat.live, 4).tolist(),
        "accessed": np.round(heat.accessed, 4).tolist(),
        "unknown": np.round(heat.unknown, 4).tolist(),
    }


def _say_written(path: Path, as_json: bool) -> None:
    if as_json:
        print_json({"file": str(path)})
    else:
        click.echo(f"wrote {path}")


def _shortened(text: str, width: int) -> str:
    return text if len(text) <= width else "…" + text[len(text) - width + 1 :]
