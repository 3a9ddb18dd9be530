# SPDX-License-Identifier: Apache-2.0
"""Pages of the file are given out if they are neither in use nor held for a forked child."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import given
from hypothesis import strategies as st

PAGES, PAGES_MAX = 150, 400


class Space:
    """struct filespace, and a model of it."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._space = ctypes.create_string_buffer(1024)
        library.filespace_init.argtypes = (ctypes.c_char_p, ctypes.c_uint64)
        library.filespace_take.restype = library.filespace_available.restype = ctypes.c_uint64
        assert library.filespace_init(self._space, ctypes.c_uint64(PAGES))
        self.pages = PAGES
        self.in_use: set[int] = set()
        self.holds: dict[int, set[int]] = {}

    def free(self) -> set[int]:
        """The pages that may be given out. Page 0 is never given out."""
        return set(range(1, self.pages)).difference(self.in_use, *self.holds.values())

    def take(self, pages: int) -> None:
        """Take a run of at most `pages` pages."""
        first = ctypes.c_uint64()
        count = self._library.filespace_take(
            self._space, ctypes.c_uint64(pages), ctypes.byref(first)
        )
        run = set(range(first.value, first.value + count))
        assert bool(run) == bool(self.free())
        assert len(run) <= pages
        assert run <= self.free()
        self.in_use |= run

    def give(self, number: int) -> None:
        """Give back one of the pages that are in use."""
        if self.in_use:
            page = sorted(self.in_use)[number % len(self.in_use)]
            self._library.filespace_give(self._space, ctypes.c_uint64(page), ctypes.c_uint64(1))
            self.in_use.remove(page)

    def hold(self, holder: int) -> None:
        """Hold the pages that are in use."""
        self._library.filespace_hold(self._space, ctypes.c_uint64(holder))
        self.holds[holder] = self.holds.get(holder, set()) | self.in_use

    def release(self, holder: int) -> None:
        """Release the holder's pages."""
        if self.holds.pop(holder, None) is not None:
            self._library.filespace_release(self._space, ctypes.c_uint64(holder))

    def grow(self, pages: int) -> None:
        """Enlarge the file by a number of pages."""
        self.pages = min(self.pages + pages, PAGES_MAX)
        assert self._library.filespace_grow(self._space, ctypes.c_uint64(self.pages))

    def check(self) -> None:
        """Compare the number of free pages with the model."""
        assert self._library.filespace_available(self._space) == len(self.free())

    def destroy(self) -> None:
        """Free the memory."""
        self._library.filespace_destroy(self._space)


@contextmanager
def new_space(library: ctypes.CDLL) -> Iterator[Space]:
    space = Space(library)
    yield space
    space.destroy()


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(1, 60)),
        st.tuples(st.just("give"), st.integers(0, PAGES_MAX)),
        st.tuples(st.sampled_from(("hold", "release")), st.integers(0, 3)),
        st.tuples(st.just("grow"), st.integers(1, 100)),
    ),
    max_size=80,
)


@given(operations=OPERATIONS)
def test_any_sequence_of_calls(library: ctypes.CDLL, operations: list[tuple[str, int]]) -> None:
    with new_space(library) as space:
        for name, number in operations:
            getattr(space, name)(number)
            space.check()


def test_a_page_is_free_when_its_last_holder_has_ended(library: ctypes.CDLL) -> None:
    with new_space(library) as space:
        space.take(50)
        space.hold(1)
        space.take(50)
        space.hold(2)
        for _ in range(100):
            space.give(0)
        assert len(space.free()) == PAGES - 1 - 100
        space.check()
        space.hold(3)  # holds no page: none is in use
        space.release(2)
        assert len(space.free()) == PAGES - 1 - 50
        space.check()
        space.release(1)
        assert len(space.free()) == PAGES - 1
        space.check()
