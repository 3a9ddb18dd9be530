# SPDX-License-Identifier: Apache-2.0
"""Tables that are filled again and again."""

from __future__ import annotations

import asyncio

from rich.text import Text
from textual.app import App, ComposeResult
from textual.widgets import DataTable

from sentineld.top.drawing import STYLES, Row, fill, styled
from sentineld.top.lines import Column, Role, Span

COLUMNS = (Column("NAME", 8, False), Column("SIZE", 6, True))


class Shown(App[None]):
    def compose(self) -> ComposeResult:
        yield DataTable[Text](cursor_type="row")


def rows(*sizes: int) -> list[Row]:
    return [(str(at), ((Span(f"row {at}"),), (Span(str(size)),))) for at, size in enumerate(sizes)]


def cells(table: DataTable[Text]) -> list[list[str]]:
    return [[cell.plain for cell in table.get_row_at(at)] for at in range(table.row_count)]


def test_every_role_has_a_style() -> None:
    assert set(STYLES) == set(Role)
    line = styled((Span("late ", Role.LABEL), Span("[b]3", Role.WARNING)))
    assert line.plain == "late [b]3"  # texts are not markup


def test_the_cells_change_and_the_table_does_not_scroll() -> None:
    async def run() -> None:
        app = Shown()
        async with app.run_test(size=(30, 6)) as pilot:
            table = app.query_one(DataTable)
            fill(table, COLUMNS, rows(*range(20)), 3)
            await pilot.pause()
            assert cells(table)[7] == ["row 7", "7"]
            table.scroll_to(y=9, animate=False)
            await pilot.pause()
            fill(table, COLUMNS, rows(*range(100, 120)), 3)
            await pilot.pause()
            assert cells(table)[7] == ["row 7", "107"]
            assert (table.scroll_y, table.cursor_row) == (9, 3)

    asyncio.run(run())


def test_other_rows_and_columns_replace_the_table() -> None:
    async def run() -> None:
        app = Shown()
        async with app.run_test(size=(30, 6)):
            table = app.query_one(DataTable)
            fill(table, COLUMNS, rows(1, 2, 3), 2)
            fill(table, COLUMNS, rows(4), 0)
            assert cells(table) == [["row 0", "4"]]
            fill(table, COLUMNS[:1], [("0", ((Span("only"),),))], 0)
            assert cells(table) == [["only"]]
            assert [column.label.plain for column in table.ordered_columns] == ["NAME"]

    asyncio.run(run())
