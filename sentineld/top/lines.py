# SPDX-License-Identifier: Apache-2.0
"""The texts of the live view, for a given width of the terminal in columns.

A line is a sequence of spans; a span is a text with its role, which decides the colour.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from sentineld.base.units import format_bytes
from sentineld.top.rates import Rates
from sentineld.top.readings import Reading, ResidencyReading, SessionReading

UNKNOWN = "-"
LABEL_COLUMNS = 7
TERM_COLUMNS = 11
LAYER_COLUMNS_MAX = 34
LAYER_BAR_COLUMNS_MIN = 8
WIDE_COLUMNS = 72
"""From this width on, the fast tier's line has the charged bytes, too."""
TIER_TEXT_COLUMNS = {True: 45, False: 25}
"""Columns that the text beside a tier's bar can take. Key: whether the tier's line, bar included,
has at least WIDE_COLUMNS columns."""
IDLE_NS = 5_000_000_000
"""The view shows the time since the last step if it exceeds both this time and the time of
IDLE_STEPS steps."""
IDLE_STEPS = 3


class Role(Enum):
    """The meaning of a span's text, which decides the colour."""

    TEXT = "text"
    LABEL = "label"
    FAST = "fast"
    SLOW = "slow"
    FREE = "free"
    GOOD = "good"
    WARNING = "warning"


class Span(NamedTuple):
    """A part of a line."""

    text: str
    role: Role = Role.TEXT


Line = tuple[Span, ...]


class Column(NamedTuple):
    """A column of a table."""

    name: str
    width: int
    right: bool
    """Whether its texts are aligned to the right."""


_SESSION_COLUMNS = (
    Column("PID", 8, True),
    Column("STATE", 10, False),
    Column("POLICY", 14, False),
    Column("BUDGET", 10, True),
    Column("USED", 5, True),
    Column("STEP", 8, True),
    Column("VS PLAN", 7, True),
)
_DROPPED_FIRST = ("POLICY", "BUDGET", "VS PLAN")
"""The columns that a narrow terminal leaves out, in this order."""
GAP_COLUMNS = 2
"""Padding of a column, on both sides together."""


def head_line(reading: Reading, cpu_share: float | None, width: int) -> list[Line]:
    """The daemon's version, tiers, CPU share and memory."""
    cpu = UNKNOWN if cpu_share is None else format_share(cpu_share, 1)
    parts = (
        f"sentineld {reading.version}",
        reading.tiers,
        f"daemon: {cpu} CPU, {format_bytes(reading.memory_bytes)}",
    )
    return [(Span(line),) for line in _wrapped(parts, width, " · ")]


def session_columns(width: int) -> list[Column]:
    """Those columns of the sessions' table that fit this width."""
    columns = list(_SESSION_COLUMNS)
    for name in _DROPPED_FIRST:
        if sum(one.width + GAP_COLUMNS for one in columns) <= width:
            break
        columns = [one for one in columns if one.name != name]
    return columns


def session_cells(session: SessionReading, rates: Rates) -> dict[str, Span]:
    """The cells of a session's row, by the names of the columns."""
    state = Role.GOOD if session.managed else Role.WARNING if session.attached else Role.TEXT
    planned = session.attached and session.budget_bytes > 0
    used = session.charged_bytes / session.budget_bytes if planned else None
    over = used is not None and used > 1
    return {
        "PID": Span(str(session.pid)),
        "STATE": Span(session.state, state),
        "POLICY": Span(session.policy if session.attached else UNKNOWN),
        "BUDGET": Span(format_bytes(session.budget_bytes) if used is not None else UNKNOWN),
        "USED": Span(
            UNKNOWN if used is None or not session.managed else format_share(used),
            Role.WARNING if over else Role.TEXT,
        ),
        "STEP": Span(UNKNOWN if rates.step_ns is None else format_ns(rates.step_ns)),
        "VS PLAN": Span(_compared(rates.step_ns, session.predicted_step_ns) or UNKNOWN),
    }


def detail_lines(session: SessionReading, rates: Rates, width: int) -> list[Line]:
    """The chosen session: state, residency by tier, moves, step time, fast share."""
    title = session.title
    if session.job:
        title += f" ({session.job})"
    title += f" is {session.state}"
    lines: list[Line] = [
        (Span(line),) for line in textwrap.wrap(f"{title}: {session.reason}", width, max_lines=2)
    ]
    if session.disturbed:
        warning = textwrap.wrap(f"warning: {session.disturbed}", width, max_lines=2)
        lines += [(Span(line, Role.WARNING),) for line in warning]
    lines += _tier_lines(session, width)
    if session.managed:
        lines += _field("moves", _moves(session, rates), width)
    lines += _field("step", _step(session, rates), width)
    if session.managed:
        lines += _field("fast", _fast_share(session), width)
    return lines


def layer_columns(width: int) -> list[Column]:
    """The columns of the table of layers. The last column, a bar, exists only if there is room."""
    sizes = [Column("FAST", 10, True), Column("SLOW", 10, True)]
    left = width - sum(one.width + GAP_COLUMNS for one in sizes) - 2 * GAP_COLUMNS
    name = min(LAYER_COLUMNS_MAX, left)
    bar = left - name
    if bar < LAYER_BAR_COLUMNS_MIN:
        return [Column("LAYER", left + GAP_COLUMNS, False), *sizes]
    return [Column("LAYER", name, False), *sizes, Column("FAST SHARE", bar, False)]


def layer_rows(
    residency: ResidencyReading, columns: Sequence[Column]
) -> Iterator[tuple[Line, ...]]:
    """The cells of each layer's row. If some bytes belong to no layer, the last row has them."""
    rows = [(one.layer, one.bytes_by_tier) for one in residency.layers]
    if any(residency.other_bytes):
        rows.append(("(other pages)", residency.other_bytes))
    for layer, sizes in rows:
        fast, slow = sizes[0], sum(sizes[1:])
        cells: list[Line] = [
            (Span(_shortened(layer, columns[0].width)),),
            (Span(format_bytes(fast)),),
            (Span(format_bytes(slow)),),
        ]
        if len(columns) > len(cells):
            cells.append(_bar(fast, slow, 0, fast + slow, columns[-1].width))
        yield tuple(cells)


def keys_line(keys: Sequence[tuple[str, str]], width: int) -> Line:
    """The keys with their meanings. If not all meanings fit, only those of help and quit are
    shown."""
    long = sum(len(key) + len(meaning) + 3 for key, meaning in keys) - 2
    spans: list[Span] = []
    for key, meaning in keys:
        spans += [Span("  " if spans else ""), Span(key, Role.GOOD)]
        if long <= width or meaning in ("help", "quit"):
            spans.append(Span(f" {meaning}"))
    return tuple(spans)


def help_text(sections: Sequence[tuple[str, Sequence[tuple[str, str]]]], width: int) -> str:
    """The help: for each section a title, and terms with their meanings beside them."""
    lines: list[str] = []
    for title, rows in sections:
        lines += ["", title] if lines else [title]
        for term, meaning in rows:
            first = f"  {term.ljust(TERM_COLUMNS)}" if term else "  "
            indent = " " * len(first)
            lines += textwrap.wrap(meaning, width, initial_indent=first, subsequent_indent=indent)
    return "\n".join(lines)


def format_ns(ns: float) -> str:
    """A time as text, such as "213 ms"."""
    if ns < 9.995e6:
        return f"{ns / 1e6:.2f} ms"
    if ns < 999.5e6:
        return f"{ns / 1e6:.0f} ms"
    return f"{ns / 1e9:.2f} s" if ns < 99.995e9 else f"{ns / 1e9:.0f} s"


def format_share(share: float, digits: int = 0) -> str:
    """A share as a percentage."""
    return f"{100 * share:.{digits}f} %"


def _tier_lines(session: SessionReading, width: int) -> Iterator[Line]:
    """A bar for each tier. All bars have the same scale; the bar of tier 0 also shows the
    budget."""
    scale = max(session.budget_bytes, *session.resident_bytes, 1)
    wide = width >= WIDE_COLUMNS
    columns = width - LABEL_COLUMNS - TIER_TEXT_COLUMNS[wide]
    for tier, size in enumerate(session.resident_bytes):
        text = format_bytes(size)
        if tier == 0:
            charged, budget = map(format_bytes, (session.charged_bytes, session.budget_bytes))
            text += f", charged {charged} of {budget}" if wide else f" of {budget}"
        left = session.budget_bytes - size if tier == 0 else 0
        bar = _bar(*((size, 0) if tier == 0 else (0, size)), max(left, 0), scale, columns)
        yield (Span(f"tier {tier}".ljust(LABEL_COLUMNS), Role.LABEL), *bar, Span(f" {text}"))


def _bar(fast: int, slow: int, free: int, scale: int, columns: int) -> Line:
    """A bar for fast bytes, slow bytes and free bytes of the budget; `scale` bytes fill all
    columns."""
    ends, total = [], 0
    for size in (fast, slow, free):
        total += size
        ends.append(min(round(columns * total / scale), columns) if scale else 0)
    return (
        Span("█" * ends[0], Role.FAST),
        Span("▒" * (ends[1] - ends[0]), Role.SLOW),
        Span("·" * (ends[2] - ends[1]), Role.FREE),
        Span(" " * (columns - ends[2])),
    )


def _moves(session: SessionReading, rates: Rates) -> list[str]:
    up, down = (
        UNKNOWN if rate is None else f"{format_bytes(rate)}/s"
        for rate in (rates.promoted_bytes_per_s, rates.demoted_bytes_per_s)
    )
    late = "" if rates.late_moves_per_s is None else f", {rates.late_moves_per_s:.1f}/s"
    return [f"up {up}", f"down {down}", f"late {session.late_moves}{late}"]


def _step(session: SessionReading, rates: Rates) -> list[str]:
    parts = [f"{session.step}"]
    if rates.step_ns is not None:
        parts.append(f"takes {format_ns(rates.step_ns)}")
    if rates.idle_ns > max(IDLE_NS, IDLE_STEPS * (rates.step_ns or 0)):
        parts.append(f"no step has ended for {format_ns(rates.idle_ns)}")
    for name, expected in (
        ("predicted", session.predicted_step_ns),
        ("all fast", session.fast_step_ns),
    ):
        if expected is not None:
            compared = _compared(rates.step_ns, expected)
            parts.append(f"{name} {format_ns(expected)}" + (f" ({compared})" if compared else ""))
    return parts


def _fast_share(session: SessionReading) -> list[str]:
    measured, predicted = session.fast_share, session.predicted_fast_share
    parts = [
        "share " + (UNKNOWN if predicted is None else f"{format_share(predicted, 1)} predicted")
    ]
    parts.append("not metered" if measured is None else f"{format_share(measured, 1)} metered")
    return parts


def _compared(step_ns: float | None, expected_ns: int | None) -> str:
    """How much longer the step takes than expected, as a percentage; "" if a time is unknown."""
    if step_ns is None or not expected_ns:
        return ""
    return f"{100 * (step_ns / expected_ns - 1):+.0f} %"


def _field(label: str, parts: Sequence[str], width: int) -> Iterator[Line]:
    """A label and the parts beside it, which continue on further lines if one line is too short."""
    label = label.ljust(LABEL_COLUMNS)
    for text in _wrapped(parts, width - LABEL_COLUMNS, "; "):
        yield (Span(label, Role.LABEL), Span(text))
        label = " " * LABEL_COLUMNS


def _wrapped(parts: Sequence[str], width: int, separator: str) -> list[str]:
    """The parts joined into lines. Each part stays on one line, and is cut if it is too long."""
    lines = [parts[0]]
    for part in parts[1:]:
        joined = f"{lines[-1]}{separator}{part}"
        if len(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(part)
    return [_shortened(line, width, from_left=False) for line in lines]


def _shortened(text: str, width: int, from_left: bool = True) -> str:
    """The text, cut to the width. Layers' names are cut from the left, where they differ least."""
    if len(text) <= width:
        return text
    return "…" + text[len(text) - width + 1 :] if from_left else text[: width - 1] + "…"
