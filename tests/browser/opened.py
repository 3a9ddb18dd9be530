# SPDX-License-Identifier: Apache-2.0
"""A report page in a browser: reads the page's contents and carries out a user's actions."""

from __future__ import annotations

from typing import Any, Protocol

from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from sentineld.report.page_data import Report

PATIENCE_S = 120.0
MAP_LEFT, MAP_TOP, MAP_HEIGHT = 96, 20, 480
"""The left edge, top edge and height of the cells in the map's canvas, in pixels, as in map.js."""


class Opened:
    """A report page that the browser has drawn. data: the page's figures."""

    def __init__(self, browser: webdriver.Chrome, data: dict[str, Any]) -> None:
        self.browser, self.data = browser, data
        self.wait(lambda: self.run("return 'drawnMs' in document.documentElement.dataset"))

    def run(self, script: str, *arguments: object) -> Any:
        return self.browser.execute_script(script, *arguments)

    def wait(self, done: Any) -> None:
        WebDriverWait(self.browser, PATIENCE_S).until(lambda _: done())

    def element(self, selector: str) -> WebElement:
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """The visible text of the first element that the selector matches. The script finds the
        element and reads it in one call, because the page can replace it between two calls."""
        found: str = self.run("return document.querySelector(arguments[0]).innerText", selector)
        return found.strip()

    def click(self, selector: str) -> None:
        self.element(selector).click()

    def press(self, label: str) -> None:
        """Click the button with this text."""
        self.browser.find_element(By.XPATH, f"//button[text()='{label}']").click()

    def search(self, words: str) -> None:
        field = self.element("#search")
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(words or Keys.DELETE)

    def column(self, label: str) -> list[str]:
        """The column's text in each row that exists as an element: visible rows and a few more."""
        found: list[str] = self.run(
            "const heads = [...document.querySelectorAll('#table th')];"
            "const at = heads.findIndex((head) => head.textContent === arguments[0]);"
            "return [...document.querySelectorAll('#table tr.row')]"
            "  .map((row) => row.children[at].textContent)",
            label,
        )
        return found

    def point(self, across: float, down: float, click: bool = False) -> None:
        """Move the pointer to a position on the map, in fractions of its width and height."""
        canvas = self.element("#map-marks")
        self.run("arguments[0].scrollIntoView({block: 'center'})", canvas)
        width, height = canvas.size["width"], canvas.size["height"]
        x = MAP_LEFT + across * (width - MAP_LEFT - 2)
        y = MAP_TOP + down * MAP_HEIGHT
        # selenium expects the distance from the element's centre.
        actions = ActionChains(self.browser).move_to_element_with_offset(
            canvas, round(x - width / 2), round(y - height / 2)
        )
        (actions.click() if click else actions).perform()

    def picture(self, selector: str) -> str:
        """A canvas's picture, as a data URL."""
        found: str = self.run("return document.querySelector(arguments[0]).toDataURL()", selector)
        return found

    def metrics(self) -> dict[str, float]:
        """Chromium's metrics of the page; durations in seconds."""
        answer = self.browser.execute_cdp_cmd("Performance.getMetrics", {})
        return {one["name"]: one["value"] for one in answer["metrics"]}


class View(Protocol):
    """Opens the page of a report. change: edits the page's figures before they are written."""

    def __call__(self, report: Report, width: int = ..., change: Any = ...) -> Opened: ...
