# SPDX-License-Identifier: Apache-2.0
"""The slowdown of processes that use swap, as a function of memory, from page temperatures.

The model: with N bytes of memory, the pages that would cause the most faults per second are
resident. The slowdown is 1 + F * T, where F is the number of faults per second on all other pages,
and T is the time that a fault waits for swap.

Its assumptions:

- A page that is not in memory causes one fault in each window (a period of WINDOW_S; see
  heat/looking.py) in which it is accessed: after the fault it stays in memory until the end of the
  window, and is then paged out again. Therefore, the fault rate is known from accessed bits, which
  show at most one access in a window.
- The processes access their pages as often as in the last scans (SCANS in history.py). In fact,
  processes that wait for swap now would access their pages more often if all memory were resident.
- No two faults overlap, and each waits for the same time.
- Paging out does not delay the processes.
"""

from __future__ import annotations

import numpy as np

from sentineld.model.arrays import Floats, Integers
from sentineld.model.records import PAGE_BYTES
from sentineld.plan.division import Curve
from sentineld.policies.temperature.heat import SLACK_SHARE

POINTS_MAX = 64
"""Maximum number of points of a curve, not counting those at which all pages in use wait for swap
(the first point, or the first two). Between two points, the curve is linear."""


def curve_of_rates(rates: Floats, pages: Integers, fault_s: float, fixed_bytes: int = 0) -> Curve:
    """The curve of processes whose pages cause these faults.

    rates, pages: (M,), see Heat.fault_rates(). fault_s: time that a fault waits for swap, in
        seconds. fixed_bytes: memory that cannot be paged out. It is resident with any budget.

    The first budget is 0. With the last one, no page that is in use waits for swap.
    """
    used = np.flatnonzero((rates > 0) & (pages > 0))
    used = used[np.argsort(-rates[used], kind="stable")]
    cost = np.cumsum(rates[used] * pages[used]) * fault_s
    fixed_pages = fixed_bytes / PAGE_BYTES
    # Page-outs leave a part of the budget free, so a budget has to exceed the resident pages.
    resident = (fixed_pages + np.cumsum(pages[used])) / (1 - SLACK_SHARE)
    total = float(cost[-1]) if len(cost) else 0.0
    points = {0: 1 + total}
    if total:
        points[_bytes(fixed_pages / (1 - SLACK_SHARE))] = 1 + total
    levels = np.linspace(0, total, POINTS_MAX + 1)[1:]
    # The sums are rounded, so the largest level can exceed the last sum.
    found = np.minimum(np.searchsorted(cost, levels), len(cost) - 1) if total else ()
    for at in dict.fromkeys(int(one) for one in found):
        points[_bytes(float(resident[at]))] = 1 + max(total - float(cost[at]), 0.0)
    return Curve(tuple(points), tuple(points.values()))


def differ(curve: Curve, other: Curve, share: float) -> bool:
    """Whether, at some budget, the slowdowns of two curves differ by more than `share` of the
    smaller slowdown."""
    budgets = np.union1d(curve.budgets_bytes, other.budgets_bytes)
    one, two = curve.at(budgets), other.at(budgets)
    return bool(np.max(np.abs(one - two) / np.minimum(one, two)) > share)


def _bytes(pages: float) -> int:
    return int(np.ceil(pages)) * PAGE_BYTES
