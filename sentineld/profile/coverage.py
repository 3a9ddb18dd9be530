# SPDX-License-Identifier: Apache-2.0
"""Counts the sampled accesses that a profile attributes to tensors and those that it does not."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sentineld.model.profile import Kind, Profile


@dataclass(frozen=True)
class Coverage:
    """Counts of attributed and unattributed accesses of one profile.

    A page counts once for each stretch that accesses it. In two cases, it counts only once, no
    matter how many stretches access it: in untold_pages, and, if the backend has no epochs, in
    unattributed_pages.
    """

    source: str  # as in Profile
    attributed_pages: int
    unattributed_pages: int
    by_kind: dict[str, int]  # attributed pages, by the name of the tensor's Kind
    untouched_tensors: int  # tensors without any access in the step
    untouched_bytes: int
    untold_pages: int  # as in Profile

    @property
    def attributed_share(self) -> float:
        """Attributed pages / all sampled pages, 0..1; 1 without samples."""
        total = self.attributed_pages + self.unattributed_pages
        return self.attributed_pages / total if total else 1.0

    def to_json(self) -> dict[str, Any]:
        """JSON values for the control protocol."""
        return {**asdict(self), "attributed_share": self.attributed_share}


def coverage(profile: Profile) -> Coverage:
    """Count the attributed and unattributed pages of a profile."""
    pages = profile.accesses["pages"].astype(np.int64)
    kinds = profile.tensors["kind"][profile.accesses["tensor"]]
    touched = np.zeros(len(profile.tensors), np.bool_)
    touched[profile.accesses["tensor"]] = True
    return Coverage(
        source=profile.source,
        attributed_pages=int(pages.sum()),
        unattributed_pages=profile.unattributed_pages,
        by_kind={kind.name.lower(): int(pages[kinds == kind].sum()) for kind in Kind},
        untouched_tensors=int(np.count_nonzero(~touched)),
        untouched_bytes=int(profile.tensors["bytes"][~touched].sum()),
        untold_pages=profile.untold_pages,
    )
