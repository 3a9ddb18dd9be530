# SPDX-License-Identifier: Apache-2.0
"""The sequence length of each step of a training. The random seed is fixed, so the lengths are the
same in all processes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

LENGTHS = (64, 96, 128, 160, 192, 224, 240, 256)
EIGHT, PADDED = "eight", "padded"
NAMES = (EIGHT, PADDED, *map(str, LENGTHS))
SENTENCES = 8


def lengths(name: str) -> Iterator[int]:
    """An endless iterator over the sequence lengths of the steps.

    name: "eight", "padded" or a number. With "eight", each length is one of LENGTHS at random. With
        "padded", as with dynamic padding, it is the length of the longest of SENTENCES sentences,
        whose lengths are uniformly distributed. With a number, it is always this number.
    """
    chance = random.Random(1)
    if name == EIGHT:
        return (chance.choice(LENGTHS) for _ in itertools.count())
    if name == PADDED:
        return (
            max(chance.randint(LENGTHS[0] // 4, LENGTHS[-1]) for _ in range(SENTENCES))
            for _ in itertools.count()
        )
    return itertools.repeat(int(name))
