# SPDX-License-Identifier: Apache-2.0
"""The parts of bandwidth and budget that a plan uses."""

MOVE_SHARE = 0.99
"""Share of a step's time that is available for moves."""

MARGIN_SHARE = 0.002
"""Share of the budget that is kept free for needs that a plan can't foresee."""
