# SPDX-License-Identifier: Apache-2.0
"""Writes the pages, page parts and dashboards that are generated from the code: `make docs`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from docs.values import with_values

DOCS = Path(__file__).parent
ROOT = DOCS.parent


def page_is_current(name: str, text: str) -> bool:
    """Whether docs/NAME has exactly this text."""
    page = DOCS / name
    return page.exists() and page.read_text() == text


def written_pages() -> Iterator[Path]:
    """Yield each Markdown page in the repository's root or below docs/ that is not in GENERATED."""
    for page in [*sorted(ROOT.glob("*.md")), *sorted(DOCS.glob("**/*.md"))]:
        if page.relative_to(DOCS.parent).as_posix() not in GENERATED:
            yield page


GENERATED = ("docs/metrics.md", "docs/reference/cli.md", "docs/reference/messages.md")
"""Pages that are entirely generated."""


def main() -> None:
    """Generate all pages, page parts and dashboards, and write the files that have changed."""
    from docs.cli_page import cli_page
    from docs.dashboard import dashboard, fleet_dashboard
    from docs.messages import messages_page
    from docs.metrics_page import metrics_page

    pages = {
        "metrics.md": metrics_page,
        "reference/cli.md": cli_page,
        "reference/messages.md": messages_page,
        "grafana/sentineld.json": dashboard,
        "grafana/sentineld-fleet.json": fleet_dashboard,
    }
    for name, make in pages.items():
        text = make()
        if not page_is_current(name, text):
            (DOCS / name).write_text(text)
            print(f"wrote docs/{name}")
    for page in written_pages():
        before = page.read_text()
        text = with_values(before)
        if text != before:
            page.write_text(text)
            print(f"wrote {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
