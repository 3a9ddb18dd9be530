# SPDX-License-Identifier: Apache-2.0
"""Checks whether the framework reports all accesses that a backend saw in a window of whole steps.

A backend without epochs does not report in which stretch a page was accessed. Therefore its
accesses are not added to the profile; they are only compared with the accesses that the framework
reported. An accessed page is "untold" if it holds only tensors for which the framework reports no
access in the whole step. If the backend sees only writes, its accesses are compared only with the
reported writes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sentineld.model.profile import Profile, page_spans
from sentineld.model.ranges import covered, union
from sentineld.observe.backend import Areas, Capabilities


def checked(profile: Profile, source: str, capabilities: Capabilities, areas: Areas) -> Profile:
    """The profile with the backend added as a source, and with counts of untold and unattributed
    pages.

    source: the backend's name.
    areas: the memory that was accessed in the window, as Watch.end() returns it; AREA_DTYPE.
    """
    reported = profile.accesses
    if not capabilities.reads:
        reported = reported[reported["bytes_written"] > 0]
    tensors = profile.tensors
    has_access = np.zeros(len(tensors), np.bool_)
    has_access[reported["tensor"]] = True
    all_tensors = union(*page_spans(tensors, profile.page_bytes))
    reported_tensors = union(*page_spans(tensors[has_access], profile.page_bytes))
    begin = areas["start"].astype(np.int64) // profile.page_bytes
    end = begin + areas["bytes"].astype(np.int64) // profile.page_bytes
    with_tensor = int(covered(begin, end, all_tensors).sum())
    explained = int(covered(begin, end, reported_tensors).sum())
    return replace(
        profile,
        source=f"{profile.source}+{source}",
        unattributed_pages=int((end - begin).sum()) - with_tensor,
        untold_pages=with_tensor - explained,
    )
