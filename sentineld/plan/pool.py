# SPDX-License-Identifier: Apache-2.0
"""The pool of dead tensors' pages, from which newborns are served without a new page, for a linear
program.

To the program pages are alike wherever they are: a page that any tensor left in
fast memory serves whoever is born fast. Addresses are found later (plan/auto/warm.py)
and do nearly as well. What is not in the pool has to be made, which takes its time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sentineld.plan.groups import Groups
from sentineld.plan.items import Integers


@dataclass(frozen=True)
class Passing:
    """Groups that are born and die. rows: (P,), which. born: (P,), the first crowd that each is in.
    gone: (P,), the first one that it is not in any more, of the next step perhaps."""

    rows: Integers
    born: Integers
    gone: Integers


def passing_of(groups: Groups) -> Passing:
    """All of them that are in any crowd."""
    rows: list[int] = []
    born: list[int] = []
    gone: list[int] = []
    many = len(groups.crowds.event)
    for at in np.flatnonzero(~groups.persistent).tolist():
        crowd, _ = groups.met(at)
        if len(crowd):
            rows.append(at)
            born.append(int(crowd[0]))
            gone.append((int(crowd[-1]) + 1) % many)
    return Passing(*(np.array(found, dtype=np.int64) for found in (rows, born, gone)))
