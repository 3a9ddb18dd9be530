# SPDX-License-Identifier: Apache-2.0
"""The units that a policy plans: chunks of tensors, and the page accesses to them.

A chunk is a run of consecutive pages of one tensor that are moved as a unit. The stretches of a
chunk's lifetime are numbered by position: in a step of S stretches, position j is the stretch
(birth + j) mod S, where `birth` is the stretch of the tensor's birth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from sentineld.model.arrays import Floats, Integers
from sentineld.model.profile import Kind, Profile

Entry = TypeVar("Entry", bound=np.generic)


@dataclass(frozen=True)
class Items:
    """N chunks, and the accesses to them in each of S stretches."""

    tensor: Integers  # (N,): row of the profile's tensors
    first_page: Integers  # (N,): index of the first page within the tensor
    pages: Integers  # (N,): number of pages
    birth: Integers  # (N,): stretch of the tensor's birth
    length: Integers  # (N,): number of stretches in the tensor's lifetime
    persistent: npt.NDArray[np.bool_]  # (N,): whether the tensor is persistent
    # (S, N): page accesses to the chunk at each position of its lifetime. Policy `auto` stores
    # instead the extra time, in ns, that these accesses take in slow memory.
    worth: Floats

    @property
    def stretch_count(self) -> int:
        """The number of stretches, S."""
        return len(self.worth)

    def take(self, which: Integers) -> Items:
        """The chunks with these indices, in the given order."""
        return Items(
            tensor=self.tensor[which],
            first_page=self.first_page[which],
            pages=self.pages[which],
            birth=self.birth[which],
            length=self.length[which],
            persistent=self.persistent[which],
            worth=self.worth[:, which],
        )

    def stretch_of(self) -> Integers:
        """(S, N): the stretch of each position."""
        count = self.stretch_count
        return (np.arange(count)[:, None] + self.birth[None, :]) % max(count, 1)

    def by_stretch(self, table: npt.NDArray[Entry]) -> npt.NDArray[Entry]:
        """Convert a table with a row per position into one with a row per stretch; both (S, N)."""
        found = np.zeros_like(table)
        found[self.stretch_of(), np.arange(table.shape[1])[None, :]] = table
        return found

    def next_use(self) -> Integers:
        """(S + 1, N): for each position, the first position at or after it in which the chunk is
        used; 3 * S if the chunk is not used again. All values in the last row are 3 * S."""
        count = self.stretch_count
        uses = np.full((count + 1, self.worth.shape[1]), 3 * count, np.int64)
        uses[:-1] = np.where(self.worth > 0, np.arange(count)[:, None], 3 * count)
        found: Integers = np.minimum.accumulate(uses[::-1], axis=0)[::-1]
        return found


def tensor_pages(profile: Profile) -> Integers:
    """(T,): the size of each tensor in pages, rounded up."""
    sizes = profile.tensors["bytes"].astype(np.int64)
    pages: Integers = -(-sizes // profile.page_bytes)
    return pages


def lifetimes(profile: Profile) -> tuple[Integers, Integers]:
    """Two arrays (T,): each tensor's birth stretch, and the number of stretches in its lifetime.

    A lifetime has at most S stretches; a persistent tensor lives in all S, from stretch 0 on.
    """
    tensors, count = profile.tensors, profile.stretch_count
    birth = tensors["birth_stretch"].astype(np.int64)
    length = tensors["death_stretch"].astype(np.int64) - birth + 1
    length = np.where(tensors["wraps"], length + count, length)
    always = tensors["kind"] == Kind.PERSISTENT
    return np.where(always, 0, birth), np.where(always, count, np.minimum(length, count))


def transient(profile: Profile) -> npt.NDArray[np.bool_]:
    """(T,): which tensors are transient and therefore planned in the arena."""
    tensors = profile.tensors
    found: npt.NDArray[np.bool_] = (tensors["slot"] >= 0) & (tensors["kind"] != Kind.PERSISTENT)
    return found


def dies_in_birth_stretch_of(profile: Profile) -> npt.NDArray[np.bool_]:
    """(T,): which transient tensors die in the stretch of their birth, but one step later. In this
    stretch, the previous step's tensor is alive until its death, and this step's tensor is alive
    from its birth on."""
    tensors = profile.tensors
    found: npt.NDArray[np.bool_] = (
        transient(profile)
        & tensors["wraps"]
        & (tensors["birth_stretch"] == tensors["death_stretch"])
    )
    return found


def persistent(profile: Profile) -> npt.NDArray[np.bool_]:
    """(T,): which tensors are persistent and in the shim's heap: parameters, optimizer state."""
    tensors = profile.tensors
    found: npt.NDArray[np.bool_] = (tensors["slot"] < 0) & (tensors["address"] >= profile.heap_base)
    return found


def by_position(profile: Profile, amounts: Floats) -> Floats:
    """(S, T): the summed amounts of each tensor's accesses at each position of its lifetime.

    amounts: (A,), one value per access row.
    """
    count, rows = profile.stretch_count, profile.accesses
    birth, _ = lifetimes(profile)
    summed = np.zeros((count, len(profile.tensors)))
    position = (rows["stretch"].astype(np.int64) - birth[rows["tensor"]]) % max(count, 1)
    np.add.at(summed, (position, rows["tensor"]), amounts)
    return summed


def share_passed(profile: Profile, stretch: Integers, event: Integers) -> Floats:
    """(N,): the place of each event within its stretch, from 0 (beginning) to 1 (end).

    stretch, event: (N,), the stretch of each event and the number of the event.

    An event is a birth or a death. Events are assumed to be spread evenly over the stretch.
    """
    begins = profile.stretches["event"].astype(np.int64)
    lengths = np.maximum(np.append(begins[1:], profile.event_count) - begins, 1)
    passed: Floats = np.clip((event - begins[stretch]) / lengths[stretch], 0.0, 1.0)
    return passed


def access_pages(profile: Profile) -> Floats:
    """(A,): page accesses of each access row.

    If the profile has samples from the kernel module: the number of the row's sampled pages.
    Otherwise: the number of pages that the row's bytes fill, at most all pages of the tensor.
    """
    rows = profile.accesses
    if "module" in profile.source:
        return rows["pages"].astype(np.float64)
    bytes_ = np.maximum(rows["bytes_read"], rows["bytes_written"]).astype(np.float64)
    filled = np.ceil(bytes_ / profile.page_bytes)
    capped: Floats = np.minimum(filled, tensor_pages(profile)[rows["tensor"]])
    return capped


def access_counts(profile: Profile) -> Floats:
    """(A,): page accesses of each access row. Unlike in access_pages(), a page counts once for each
    of its accesses.

    If the profile has no samples from the kernel module, each page counts once.
    """
    if "module" in profile.source:
        return profile.accesses["page_accesses"].astype(np.float64)
    return access_pages(profile)


def chunks(profile: Profile, tensors: Integers, chunk_pages: int) -> Items:
    """Cut the tensors (given as rows of the profile) into chunks of at most chunk_pages pages."""
    pages = tensor_pages(profile)
    parts = -(-pages[tensors] // chunk_pages)
    tensor = np.repeat(tensors, parts)
    ordinal = np.arange(len(tensor)) - np.repeat(np.cumsum(parts) - parts, parts)
    first_page = ordinal * chunk_pages
    size = np.minimum(chunk_pages, pages[tensor] - first_page)
    birth, length = lifetimes(profile)
    accessed = by_position(profile, access_pages(profile))
    worth = accessed[:, tensor] * (size / np.maximum(pages[tensor], 1))
    return Items(
        tensor=tensor,
        first_page=first_page,
        pages=size,
        birth=birth[tensor],
        length=length[tensor],
        persistent=profile.tensors["kind"][tensor] == Kind.PERSISTENT,
        worth=worth,
    )
