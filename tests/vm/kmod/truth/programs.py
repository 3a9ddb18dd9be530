# SPDX-License-Identifier: Apache-2.0
"""Random programs of page accesses: hypothesis strategies for the language of truth.h.

The programs are correct under any thread schedule. In each step a region is either shared
or owned by one thread. In a shared region, threads execute only operations that are safe in
parallel; the owner of a region can also unmap and replace its pages.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from .outcome import ARENA_PAGES, HUGE_PAGES

ACCESSES = (
    "read",
    "write",
    "read-write",
    "write-read",
    "exchange",
    "kernel-read",
    "kernel-write",
)
SHARED = ("cold", "clear-refs", "fork")
"""Changes that neither discard data nor unarm pages."""
OWN = ("drop", "remap")
UNARMING_SHARED = ("executable", "not-executable")
UNARMING_OWN = ("protect-none", "protect-read", "mremap")
HUGE_SHARED = ("huge", "not-huge", "collapse")
SCANNED_MS = 20
"""CPU time after which NUMA balancing, with the settings of test_truth.py, has scanned all of the
target's memory."""


@dataclasses.dataclass(frozen=True)
class Program:
    """A program in the language of truth.h, and the options for attaching to its target."""

    lines: tuple[str, ...]
    """The lines of the program's text, without the lines "program", "mode" and "end"."""
    precise: bool = False
    """Attach with SENTINEL_ATTACH_PRECISE_WRITE."""
    rearm_us: int = 0
    """Interval at which pages are armed again within an epoch; 0: never."""
    balancing: bool = False
    """NUMA balancing is on and may unarm any page at any time."""

    @property
    def text(self) -> str:
        """The text that kmod-truth reads."""
        mode = f"mode {int(self.precise)} {self.rearm_us} {int(self.balancing)}"
        return "\n".join(("program random", mode, *self.lines, "end", ""))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print the program for hypothesis, as a text that can be saved and run."""
        printer.text(f"\n{self.text}")


def from_text(text: str) -> Program:
    """Parse the text of a program that was printed, or kept as a file."""
    lines = [line.strip() for line in text.splitlines()]
    mode = next((line.split()[1:] for line in lines if line.startswith("mode ")), ["0", "0", "0"])
    body = tuple(
        line for line in lines if line and line.split()[0] not in ("program", "mode", "end", "#")
    )
    return Program(body, mode[0] != "0", int(mode[1]), mode[2] != "0")


@dataclasses.dataclass(frozen=True)
class Region:
    """A mapping in the arena; numbers are in pages."""

    start: int
    count: int
    huge: bool = False


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of program: which optional operations its programs have, and in which mode they
    run."""

    unarming: bool = False  # has operations that unarm pages
    huge: bool = False  # has a region with huge pages
    precise: bool = False  # sets Program.precise
    rearm: bool = False  # sets Program.rearm_us
    balancing: bool = False  # sets Program.balancing

    def __str__(self) -> str:
        fields = dataclasses.fields(self)
        return ", ".join(field.name for field in fields if getattr(self, field.name)) or "basic"


def programs(kind: Kind) -> SearchStrategy[Program]:
    """Programs of one kind."""
    return _programs(kind)


@st.composite
def _programs(draw: DrawFn, kind: Kind) -> Program:
    threads = draw(st.integers(1, 3))
    regions, lines = draw(_layout(kind))
    lines = [f"threads {threads}", *lines]
    ranges = draw(_ranges(regions))
    lines += [f"range {start} {count}" for start, count in ranges]
    for _ in range(draw(st.sampled_from((3, 5, 7)))):
        lines.append("epoch")
        if draw(st.integers(0, 2)) == 0:
            lines.append(f"before {draw(_watch_change(regions, len(ranges)))}")
        lines += [
            f"{draw(st.sampled_from(('before', 'during', 'during')))} {verb}"
            for verb in draw(st.lists(_controller_verb(kind, regions), max_size=2))
        ]
        if kind.balancing:
            lines.append(f"spin 0 {SCANNED_MS}")
        for number in range(draw(st.sampled_from((1, 2, 3, 4)))):
            lines += ["step"] if number else []
            lines += draw(_step(kind, regions, threads))
    return Program(
        tuple(lines),
        precise=kind.precise,
        rearm_us=draw(st.sampled_from((1000, 3000))) if kind.rearm else 0,
        balancing=kind.balancing,
    )


@st.composite
def _layout(draw: DrawFn, kind: Kind) -> tuple[list[Region], list[str]]:
    """Regions, and the lines that declare them. Some regions are adjacent, some cross a 2 MiB
    boundary."""
    regions: list[Region] = []
    lines: list[str] = []
    page = draw(st.sampled_from((0, 3, HUGE_PAGES - 20)))
    for _ in range(draw(st.sampled_from((1, 2, 3, 4)))):
        region = Region(page, draw(st.sampled_from((1, 3, 10, 24, 50, 80, 120))))
        regions.append(region)
        node = -1 if kind.balancing else draw(st.integers(0, 1))
        fill = draw(st.sampled_from((1, 1, 0, 2)))
        lines.append(f"region {region.start} {region.count} {node} {fill} 0")
        page += region.count + draw(st.sampled_from((0, 0, 1, 30)))
    if kind.huge:
        start = (page + HUGE_PAGES - 1) // HUGE_PAGES * HUGE_PAGES
        region = Region(start, HUGE_PAGES, huge=True)
        regions.append(region)
        fill = draw(st.sampled_from((1, 0, 3)))
        lines.append(f"region {start} {HUGE_PAGES} {draw(st.integers(0, 1))} {fill} 1")
    assert regions[-1].start + regions[-1].count <= ARENA_PAGES
    return regions, lines


@st.composite
def _ranges(draw: DrawFn, regions: list[Region]) -> list[tuple[int, int]]:
    """The watched ranges: the whole arena, each region, or a part of each."""
    how = draw(st.sampled_from(("all", "regions", "parts")))
    if how == "all":
        return [(0, ARENA_PAGES)]
    if how == "regions":
        return [(region.start, region.count) for region in regions]
    return [draw(_part(region)) for region in regions]


@st.composite
def _part(draw: DrawFn, region: Region) -> tuple[int, int]:
    """A part of a region, often the whole region: its first page and number of pages."""
    if draw(st.sampled_from((True, True, False))):
        return region.start, region.count
    first = draw(st.integers(0, region.count - 1))
    return region.start + first, draw(st.integers(1, region.count - first))


@st.composite
def _watch_change(draw: DrawFn, regions: list[Region], ranges: int) -> str:
    """A controller's line that changes which pages are watched."""
    verb = draw(st.sampled_from(("arm", "disarm", "add", "remove")))
    if verb in ("add", "remove"):
        return f"{verb} {draw(st.integers(0, ranges - 1))}"
    start, count = draw(_part(draw(st.sampled_from(regions))))
    return f"{verb} {start} {count}"


@st.composite
def _controller_verb(draw: DrawFn, kind: Kind, regions: list[Region]) -> str:
    """A controller's line that is allowed at any time: move pages, arm watched pages again, or
    wait."""
    verbs = ("move", "rearm", "wait") + (("move-bare",) if kind.unarming else ())
    verb = draw(st.sampled_from(verbs))
    if verb == "wait":
        return f"wait {draw(st.integers(100, 3000))}"
    start, count = draw(_part(draw(st.sampled_from(regions))))
    node = "" if verb == "rearm" else f" {draw(st.integers(0, 1))}"
    return f"{verb} {start} {count}{node}"


@st.composite
def _step(draw: DrawFn, kind: Kind, regions: list[Region], threads: int) -> list[str]:
    """The lines of one step, thread by thread."""
    owners = [draw(st.integers(-1, threads - 1)) for _ in regions]
    lines = []
    for thread in range(threads):
        shared = [region for region, owner in zip(regions, owners, strict=True) if owner < 0]
        own = [region for region, owner in zip(regions, owners, strict=True) if owner == thread]
        if shared or own:
            verbs = draw(st.lists(_verb(kind, shared, own), min_size=1, max_size=5))
            lines += [verb.replace("@", str(thread)) for verb in verbs]
    return lines


@st.composite
def _verb(draw: DrawFn, kind: Kind, shared: list[Region], own: list[Region]) -> str:
    """One line of a thread. _step() replaces @ with the thread's number."""
    region = draw(st.sampled_from(shared + own))
    names: tuple[str, ...] = ACCESSES * 2 + SHARED
    if region.count > 1:
        names += ("straddle",)
    if kind.unarming:
        names += UNARMING_SHARED
    if region.huge:
        names += HUGE_SHARED
    if region in own:
        names += OWN + (UNARMING_OWN if kind.unarming else ())
    if kind.balancing:
        names += ("spin",)
    name = draw(st.sampled_from(names))
    start, count = draw(_part(region))
    if name in HUGE_SHARED:
        return f"{name} @ {region.start} {region.count}"
    if name == "mremap":
        return draw(_mremap(region, own, start, count))
    if name == "clear-refs":
        return f"clear-refs @ {draw(st.sampled_from((1, 4)))}"
    if name == "spin":
        return f"spin @ {draw(st.integers(1, 20))}"
    if name == "fork":
        return f"fork @ {start} {count} {draw(st.integers(0, 3))}"
    if name in ACCESSES or name == "straddle":
        return draw(_access(name, region, start, count))
    return f"{name} @ {start} {count}"


@st.composite
def _access(draw: DrawFn, name: str, region: Region, start: int, count: int) -> str:
    if name == "straddle":
        # on the region's last page, a word across the page's end would reach into the next region
        last = region.start + region.count - 1
        start, count = min(start, last - 1), min(count, last - min(start, last - 1))
    # the last stride must end within the region: in the arena's last region, a stride that ends
    # beyond the region ends beyond the arena, too, and each() in access.c refuses it
    stride = min(draw(st.sampled_from((1, 1, 1, 2, 3, 7))), count)
    return f"{name} @ {start} {count // stride} {stride}"


@st.composite
def _mremap(draw: DrawFn, region: Region, own: list[Region], start: int, count: int) -> str:
    """Move pages to another place that the thread owns; drop them if there is no such place."""
    places = [
        (other.start, other.count)
        for other in own
        if other.huge == region.huge and other is not region
    ]
    places += [(region.start, start - region.start)]
    end = start + count
    places += [(end, region.start + region.count - end)]
    fitting = [(first, room) for first, room in places if room >= 1]
    if not fitting:
        return f"drop @ {start} {count}"
    first, room = draw(st.sampled_from(fitting))
    count = min(count, room)
    to = first + draw(st.integers(0, room - count))
    return f"mremap @ {start} {count} {to}"
