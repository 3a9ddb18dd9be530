# SPDX-License-Identifier: Apache-2.0
"""Chunks for tests, and their lives written as words."""

from __future__ import annotations

import numpy as np

from sentineld.model.arrays import Mask
from sentineld.plan.items import Items


def items(*uses: tuple[int, ...], stretches: int = 4, pages: int = 1, lasts: bool = True) -> Items:
    """Chunks that live for the whole step and are read completely in the given stretches.

    lasts: whether the chunks are persistent. Otherwise, all of them belong to one transient tensor.
    """
    many = len(uses)
    worth = np.zeros((stretches, many))
    for chunk, used in enumerate(uses):
        worth[list(used), chunk] = pages
    return Items(
        tensor=np.arange(many) if lasts else np.zeros(many, np.int64),
        first_page=np.zeros(many, np.int64) if lasts else pages * np.arange(many),
        pages=np.full(many, pages),
        birth=np.zeros(many, np.int64),
        length=np.full(many, stretches),
        persistent=np.full(many, lasts),
        worth=worth,
    )


def drawn(fast: Mask, moving: Mask) -> list[str]:
    """Lives as words: one word per chunk, one letter per stretch from the birth on.

    fast, moving: see Lives.

    F: fast; s: slow; D: being demoted; U: being promoted.
    """
    letters = np.array([["s", "U"], ["F", "D"]])
    table = letters[fast.astype(int), moving.astype(int)]
    return ["".join(column) for column in table.T.tolist()]
