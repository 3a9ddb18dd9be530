# SPDX-License-Identifier: Apache-2.0
"""How much of what was sampled a profile can explain."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sentineld.model.profile import Kind, Profile


@dataclass(frozen=True)
class Coverage:
    """Counts are touched page x stretch pairs. by_kind: attributed ones by Kind's name."""

    source: str
    attributed_pages: int
    unattributed_pages: int
    by_kind: dict[str, int]
    untouched_tensors: int  # without any access in the step
    untouched_bytes: int
    untold_pages: int  # accessed all the same, as a backend beside the framework saw

    @property
    def attributed_share(self) -> float:
        """Attributed / all sampled pairs; 1 without samples."""
        total = self.attributed_pages + self.unattributed_pages
        return self.attributed_pages / total if total else 1.0

    def to_json(self) -> dict[str, Any]:
        """Plain values for the control protocol."""
        return {**asdict(self), "attributed_share": self.attributed_share}


def coverage(profile: Profile) -> Coverage:
    """The profile's figures."""
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
