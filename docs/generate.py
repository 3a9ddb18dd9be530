# SPDX-License-Identifier: Apache-2.0
"""Writes the pages that come from the code: `make docs`."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).parent


def page_is_current(name: str, text: str) -> bool:
    """Whether docs/NAME says just this."""
    page = DOCS / name
    return page.exists() and page.read_text() == text


def main() -> None:
    """Write what has changed."""
    from docs.cli_page import cli_page
    from docs.dashboard import dashboard
    from docs.metrics_page import metrics_page

    pages = {
        "metrics.md": metrics_page,
        "reference/cli.md": cli_page,
        "grafana/sentineld.json": dashboard,
    }
    for name, make in pages.items():
        text = make()
        if not page_is_current(name, text):
            (DOCS / name).write_text(text)
            print(f"wrote docs/{name}")


if __name__ == "__main__":
    main()
