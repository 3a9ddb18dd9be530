# SPDX-License-Identifier: Apache-2.0
"""Draws lines and tables of lines with textual's widgets; defines the layout and the colours."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.widgets import DataTable

from sentineld.top.lines import Column, Line, Role

STYLE_SHEET = """
Screen { layout: vertical; }
#head { background: $panel; text-style: bold; height: auto; padding: 0 1; }
DataTable { overflow-x: hidden; scrollbar-size-vertical: 1; }
#details { height: auto; padding: 1; }
#layers { height: 1fr; }
#note { height: auto; max-height: 3; padding: 0 1; }
#keys { background: $panel; height: 1; padding: 0 1; }
.stale #sessions, .stale #details, .stale #layers { opacity: 60%; }
ModalScreen { align: center middle; }
.dialog {
    width: 100%; max-width: 64; height: auto; max-height: 100%; padding: 0 1;
    border: round $accent; background: $surface; scrollbar-size-vertical: 1;
}
.title { text-style: bold; }
.keys { color: $text-muted; margin-top: 1; }
#problem { color: $warning; }
"""
"""The layout from top to bottom. The table of layers takes the lines that the other widgets leave
free."""

COLUMNS_MIN = 10
"""The texts are made for at least this width. A narrower terminal shows only parts of them."""
PADDING_COLUMNS = 2
"""Columns that the texts leave free on the left and on the right, in total."""
SCROLLBAR_COLUMNS = 1
"""Columns that a table leaves free for its scroll bar."""
DIALOG_COLUMNS_MAX = 64
DIALOG_EDGE_COLUMNS = 5
"""Columns of a dialog's border, padding and scroll bar."""

STYLES = {
    Role.TEXT: "",
    Role.LABEL: "bold",
    Role.FAST: "#4ebf71",
    Role.SLOW: "#ffa62b",
    Role.FREE: "dim",
    Role.GOOD: "#4ebf71",
    Role.WARNING: "bold #ffa62b",
}

Row = tuple[str, Sequence[Line]]
"""A row of a table: its key, which stays the same when the cells change, and its cells."""


def fill(
    table: DataTable[Text],
    columns: Sequence[Column],
    rows: Sequence[Row],
    cursor_row: int = 0,
) -> None:
    """Show these rows. If the table already has these columns and rows with these keys, only the
    cells change, and the table does not scroll."""
    names = [column.name for column in columns]
    same_columns = [(str(one.label), one.width) for one in table.ordered_columns] == [
        (column.name, column.width) for column in columns
    ]
    if not same_columns:
        table.clear(columns=True)
        for column in columns:
            label = Text(column.name, justify="right" if column.right else "left")
            table.add_column(label, width=column.width, key=column.name)
    if [row.key.value for row in table.ordered_rows] != [key for key, _ in rows]:
        table.clear()
        for key, cells in rows:
            table.add_row(*map(_cell, cells, columns), key=key)
    else:
        for key, cells in rows:
            for name, text in zip(names, map(_cell, cells, columns), strict=True):
                table.update_cell(key, name, text)
    table.move_cursor(row=cursor_row, scroll=False)


def _cell(line: Line, column: Column) -> Text:
    text = styled(line)
    text.justify = "right" if column.right else "left"
    return text


def styled(line: Line) -> Text:
    """A line as textual's Text; the role of each span determines its colour."""
    return Text.assemble(*((span.text, STYLES[span.role]) for span in line), no_wrap=False)
