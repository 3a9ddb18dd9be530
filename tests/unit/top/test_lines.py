# SPDX-License-Identifier: Apache-2.0
"""The texts of the live view at several widths."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.top.lines import (
    GAP_COLUMNS,
    Line,
    Role,
    detail_lines,
    format_ns,
    head_line,
    help_text,
    keys_line,
    layer_columns,
    layer_rows,
    session_cells,
    session_columns,
)
from sentineld.top.rates import Rates
from sentineld.top.readings import LayerReading, Reading, ResidencyReading, SessionReading
from sentineld.top.words import KEYS
from tests.unit.top.answers import IDLE, LATER, MIB, SECOND_NS, TRAINING, residency, status

READING = Reading.of(status())
RATES = Rates(310.0 * MIB, 305.0 * MIB, 0.5, 213e6, 0)
WIDTHS = st.integers(38, 200)


def session(pid: int) -> SessionReading:
    found = READING.session(str(pid))
    assert found is not None
    return found


def plain(line: Line) -> str:
    return "".join(span.text for span in line).rstrip()


def details(pid: int, rates: Rates, width: int) -> list[str]:
    return [plain(line) for line in detail_lines(session(pid), rates, width)]


def test_the_chosen_session_of_a_terminal_of_80_columns() -> None:
    assert details(TRAINING, RATES, 78) == [
        "process 4242 is managed: the plan is live, budget 48.0 MiB",
        "tier 0 ███████·" + " " * 19 + "45.0 MiB, charged 46.0 MiB of 48.0 MiB",
        "tier 1 " + "▒" * 26 + " 160.0 MiB",
        "moves  up 310.0 MiB/s; down 305.0 MiB/s; late 17, 0.5/s",
        "step   800; takes 213 ms; predicted 205 ms (+4 %); all fast 180 ms (+18 %)",
        "fast   share 92.1 % predicted; 91.8 % metered",
    ]


def test_the_chosen_session_of_a_terminal_of_40_columns() -> None:
    assert details(TRAINING, RATES, 38) == [
        "process 4242 is managed: the plan is",
        "live, budget 48.0 MiB",
        "tier 0 ██     45.0 MiB of 48.0 MiB",
        "tier 1 ▒▒▒▒▒▒ 160.0 MiB",
        "moves  up 310.0 MiB/s",
        "       down 305.0 MiB/s",
        "       late 17, 0.5/s",
        "step   800; takes 213 ms",
        "       predicted 205 ms (+4 %)",
        "       all fast 180 ms (+18 %)",
        "fast   share 92.1 % predicted",
        "       91.8 % metered",
    ]


def test_unknown_figures_are_left_out_or_dashes() -> None:
    unmetered = replace(session(TRAINING), fast_share=None, predicted_step_ns=None)
    lines = [plain(line) for line in detail_lines(unmetered, Rates(), 80)]
    assert lines[3:] == [
        "moves  up -; down -; late 17",
        "step   800; all fast 180 ms",
        "fast   share 92.1 % predicted; not metered",
    ]
    assert details(IDLE, Rates(), 80) == [
        "process 31337 is registered: the shim said hello",
        "step   12",
    ]


def test_a_step_that_does_not_end_is_reported() -> None:
    assert details(IDLE, Rates(idle_ns=6 * SECOND_NS), 80)[-1] == (
        "step   12; no step has ended for 6.00 s"
    )
    slow = Rates(step_ns=10 * SECOND_NS, idle_ns=20 * SECOND_NS)
    assert details(IDLE, slow, 80)[-1] == "step   12; takes 10.00 s"
    stopped = replace(slow, idle_ns=31 * SECOND_NS)
    assert "no step has ended for 31.00 s" in details(IDLE, stopped, 80)[-1]


def test_a_group_is_named() -> None:
    group = replace(session(IDLE), group="cgroup /a")
    assert plain(detail_lines(group, RATES, 80)[0]).startswith("cgroup /a is ")


def test_a_rank_of_a_job_is_named() -> None:
    job = {"name": "bert-7", "rank": 5, "world_size": 16, "local_rank": 1}
    answer = status()
    answer["sessions"] = [{**one, "job": job} for one in answer["sessions"]]
    rank = Reading.of(answer).session(str(IDLE))
    assert rank is not None
    line = plain(detail_lines(rank, RATES, 80)[0])
    assert line.startswith("process 31337 (rank 5 of 16 of job bert-7) is registered: ")


def test_a_disturbance_is_a_warning() -> None:
    disturbed = replace(session(TRAINING), disturbed="4096 pages were moved by others (kswapd)")
    line = detail_lines(disturbed, RATES, 80)[1]
    assert plain(line) == "warning: 4096 pages were moved by others (kswapd)"
    assert line[0].role is Role.WARNING


def test_rows_of_sessions() -> None:
    rows = {one.pid: session_cells(one, RATES) for one in READING.sessions}
    assert [cell.text for cell in rows[TRAINING].values()] == [
        *("4242", "managed", "auto", "48.0 MiB", "96 %", "213 ms", "+4 %"),
    ]
    assert [cell.text for cell in session_cells(session(LATER), Rates()).values()] == [
        *("4711", "allocation", "sentinel+spill", "-", "-", "-", "-"),
    ]
    roles = [rows[pid]["STATE"].role for pid in (TRAINING, LATER, IDLE)]
    assert roles == [Role.GOOD, Role.WARNING, Role.TEXT]
    over = replace(session(TRAINING), charged_bytes=49 * MIB)
    assert session_cells(over, RATES)["USED"] == ("102 %", Role.WARNING)


@pytest.mark.parametrize(
    ("width", "names"),
    [
        (80, ["PID", "STATE", "POLICY", "BUDGET", "USED", "STEP", "VS PLAN"]),
        (70, ["PID", "STATE", "BUDGET", "USED", "STEP", "VS PLAN"]),
        (50, ["PID", "STATE", "USED", "STEP", "VS PLAN"]),
        (39, ["PID", "STATE", "USED", "STEP"]),
    ],
)
def test_a_narrow_table_of_sessions_leaves_columns_out(width: int, names: list[str]) -> None:
    assert [column.name for column in session_columns(width)] == names


def rows_of_layers(width: int) -> list[list[str]]:
    found = ResidencyReading.of(str(TRAINING), residency())
    rows = layer_rows(found, layer_columns(width))
    return [[plain(cell) for cell in cells] for cells in rows]


def test_rows_of_layers() -> None:
    rows = rows_of_layers(79)
    assert rows[0] == ["(step begin)", "64.0 KiB", "0 B", "█" * 17]
    assert rows[2] == ["transformer.h.0.attn.c_attn", "3.0 MiB", "1.0 MiB", "█" * 13 + "▒" * 4]
    assert rows[-1][:3] == ["(other pages)", "1.0 MiB", "0 B"]
    assert rows_of_layers(39)[2] == ["….attn.c_attn", "3.0 MiB", "1.0 MiB"]


def test_without_other_bytes_there_is_no_row_for_them() -> None:
    found = ResidencyReading("1", (LayerReading("block", (MIB, 0)),), (0, 0))
    assert len(list(layer_rows(found, layer_columns(79)))) == 1


def test_the_daemons_own_cost_is_at_the_top() -> None:
    assert [plain(line) for line in head_line(READING, 0.034, 80)] == [
        "sentineld 0.1.0 · emulated tiers (cxl) · daemon: 3.4 % CPU, 84.0 MiB"
    ]
    assert [plain(line) for line in head_line(READING, None, 40)] == [
        "sentineld 0.1.0 · emulated tiers (cxl)",
        "daemon: - CPU, 84.0 MiB",
    ]


def test_the_help_wraps_beside_its_terms() -> None:
    sections = (("Keys", (("b", "another budget of fast memory"),)), ("More", (("", "a b"),)))
    assert help_text(sections, 30).splitlines() == [
        "Keys",
        "  b          another budget of",
        "             fast memory",
        "",
        "More",
        "  a b",
    ]


def test_keys_have_meanings_if_there_is_room() -> None:
    assert plain(keys_line(KEYS, 80)) == (
        "b budget  p policy  d detach  m meter  r record  ? help  q quit"
    )
    assert plain(keys_line(KEYS, 40)) == "b  p  d  m  r  ? help  q quit"


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (1_234_000, "1.23 ms"),
        (9_999_000, "10 ms"),
        (213e6, "213 ms"),
        (999.7e6, "1.00 s"),
        (99.999e9, "100 s"),
    ],
)
def test_times_have_three_digits(ns: float, text: str) -> None:
    assert format_ns(ns) == text


@given(WIDTHS, st.text(max_size=200), st.integers(0, 1 << 50), st.integers(0, 1 << 50))
def test_no_line_is_wider_than_the_terminal(width: int, text: str, up: int, size: int) -> None:
    text = "".join(c if c.isascii() and c.isprintable() else "?" for c in text)
    one = replace(
        session(TRAINING),
        reason=text,
        disturbed=text,
        budget_bytes=size,
        resident_bytes=(size, up),
        charged_bytes=size,
        step=up,
        late_moves=up,
    )
    rates = Rates(float(up), float(size), float(up), float(size), up)
    lines = [*detail_lines(one, rates, width), *head_line(READING, 1.5, width)]
    lines.append(keys_line(KEYS, width))
    assert all(len(plain(line)) <= width for line in lines)
    columns = session_columns(width + 1)
    assert sum(column.width + GAP_COLUMNS for column in columns) < width + 2
    reading = ResidencyReading("1", (LayerReading(text, (size, up)),), (up, size))
    columns = layer_columns(width - 1)
    assert sum(column.width + GAP_COLUMNS for column in columns) < width
    for cells in layer_rows(reading, columns):
        for cell, column in zip(cells, columns, strict=True):
            assert len(plain(cell)) <= column.width
