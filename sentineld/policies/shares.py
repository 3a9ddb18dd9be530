# SPDX-License-Identifier: Apache-2.0
"""The parts of bandwidth and budget that plans use: the same for all policies that move pages by
plan, so that their plans can be compared."""

MOVE_SHARE = 0.99
"""Share of a step's time that is available for moves."""

MARGIN_SHARE = 0.002
"""Share of the budget that is kept free for needs that a plan can't foresee."""


def usable_pages(budget_bytes: int, page_bytes: int) -> int:
    """The whole pages of a budget, without MARGIN_SHARE of them."""
    pages = budget_bytes // page_bytes
    return pages - int(pages * MARGIN_SHARE)
