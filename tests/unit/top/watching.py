# SPDX-License-Identifier: Apache-2.0
"""Runs the live view without a terminal, and reads its screen."""

from __future__ import annotations

import asyncio
import os
import time
import xml.etree.ElementTree as ET
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from textual.pilot import Pilot

from sentineld.top.app import TopApp
from sentineld.top.polling import Control

SCREENS = Path(__file__).with_name("screens")
UPDATE = "SENTINELD_UPDATE_SCREENS"
"""If this variable is set, the tests write the pictures that they otherwise compare."""
PATIENCE_S = 600.0
COLUMN_UNITS = 12.2
"""Width of a character in the picture, in units of the SVG."""
HOUR_S = 3600.0


@dataclass
class View:
    """A running view."""

    app: TopApp
    pilot: Pilot[None]

    async def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        await self.pilot.press(*keys)

    async def type(self, text: str) -> None:
        """Replace the text of the dialog's field, and press Enter."""
        await self.pilot.press("end", "ctrl+u", *text, "enter")

    async def until(self, done: Callable[[], object], what: str) -> None:
        """Wait until done() is true."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < deadline_s, f"{what} did not happen:\n{self.text()}"
            await self.pilot.pause(0.02)

    async def until_shown(self, text: str) -> None:
        """Wait until the screen shows a text."""
        await self.until(lambda: text in self.text(), repr(text))

    def svg(self) -> str:
        """The screen as a picture."""
        return self.app.export_screenshot(title="sentinelctl top")

    def text(self) -> str:
        """The lines of the screen."""
        lines: dict[str, str] = {}
        for element in ET.fromstring(self.svg()).iter("{http://www.w3.org/2000/svg}text"):
            if "clip-path" in element.attrib:
                line = element.attrib["clip-path"]
                column = round(float(element.attrib["x"]) / COLUMN_UNITS)
                lines[line] = lines.get(line, "").ljust(column) + "".join(element.itertext())
                lines[line] = lines[line].replace("\xa0", " ").rstrip("\n")
        return "\n".join(line.rstrip() for line in lines.values())


def watch(
    control: Control,
    scenario: Callable[[View], Awaitable[None]],
    size: tuple[int, int] = (80, 24),
    interval_s: float = HOUR_S,
    record: Callable[[int, Path], str] = lambda pid, path: f"recorded {path}",
) -> None:
    """Run the view, and a test's coroutine that uses it."""

    async def run() -> None:
        app = TopApp(control, record, interval_s)
        async with app.run_test(size=size) as pilot:
            view = View(app, pilot)
            await view.until(lambda: app.reading or app.error, "the first poll")
            await scenario(view)

    asyncio.run(run())


def check_screen(view: View, name: str) -> None:
    """Compare the screen with the picture of this name."""
    file, svg = SCREENS / f"{name}.svg", view.svg()
    if UPDATE in os.environ:
        file.write_text(svg)
        return
    assert file.read_text() == svg, (
        f"the screen differs from {file}:\n{view.text()}\n"
        f"if this is intended: {UPDATE}=1 python -m pytest tests/unit/top, then look at the picture"
    )
