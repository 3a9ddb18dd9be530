# SPDX-License-Identifier: Apache-2.0
"""Headless Chromium, driven by selenium through Debian's chromedriver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from sentineld.report.page import write_page
from sentineld.report.page_data import Report, page_data
from tests.browser.opened import Opened, View

WIDTH, HEIGHT = 1280, 1400


@pytest.fixture(scope="session")
def browser() -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    # Chromium's sandbox does not work for root, who runs the tests in continuous integration. The
    # sandbox is not needed, because the tests generate the pages.
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    # Have Chromium measure durations in CPU time of the page's thread, because other tests that run
    # at the same time lengthen the elapsed time.
    driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    yield driver
    driver.quit()


@pytest.fixture
def view(browser: webdriver.Chrome, tmp_path: Path) -> Iterator[View]:
    """Opens a page. After the test, the console must not have any message."""
    browser.get_log("browser")

    def opened(
        report: Report, width: int = WIDTH, change: Callable[..., None] | None = None
    ) -> Opened:
        data = page_data(report)
        if change is not None:
            change(data)
        path = tmp_path / "page.html"
        write_page(data, path)
        browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False},
        )
        browser.get(path.as_uri())
        return Opened(browser, data)

    yield opened
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert browser.get_log("browser") == []
