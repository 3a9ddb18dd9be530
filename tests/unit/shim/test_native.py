# SPDX-License-Identifier: Apache-2.0
"""The shim's C library is found or built; any other library is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sentineld.shim import native
from sentineld.shim.native import (
    HEAP_PAGES_MAX,
    LIBRARY_NAME,
    SHIM_VERSION,
    ShimUnavailableError,
    default_heap_pages,
    library_path,
)
from tests.unit.shim.harness import COMPILER
from tests.unit.shim.shimmed import LOAD, ROOT, run


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that contains an empty package folder and a C source file with one function."""
    package, sources = tmp_path / "package", tmp_path / "native"
    package.mkdir()
    sources.mkdir()
    (sources / "one.c").write_text("int sentinel_version(void) { return 3; }\n")
    monkeypatch.setattr(native, "__file__", str(package / "native.py"))
    monkeypatch.setattr(native, "_SOURCES", sources)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CC", COMPILER)
    monkeypatch.delenv("SENTINELD_SHIM_LIBRARY", raising=False)
    return tmp_path


def test_the_named_library_goes_first(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENTINELD_SHIM_LIBRARY", "/some/where.so")
    assert library_path() == Path("/some/where.so")


def test_a_library_is_built_once_for_the_same_sources(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = library_path()
    assert built.parent == elsewhere / "cache/sentineld"
    assert built.name.endswith(LIBRARY_NAME)
    monkeypatch.setenv("CC", "/no/such/compiler")
    assert library_path() == built
    monkeypatch.setenv("CC", COMPILER)
    (elsewhere / "native/one.c").write_text("int sentinel_version(void) { return 5; }\n")
    assert library_path() != built
    assert len(list(built.parent.iterdir())) == 2


def test_a_packaged_library_is_used_unless_a_source_is_newer(elsewhere: Path) -> None:
    packaged = elsewhere / "package" / LIBRARY_NAME
    packaged.write_bytes(b"")
    source = elsewhere / "native/one.c"
    os.utime(source, (1000, 1000))
    assert library_path() == packaged
    os.utime(packaged, (500, 500))
    assert library_path().parent == elsewhere / "cache/sentineld"


def test_an_old_packaged_library_is_better_than_none(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = elsewhere / "package" / LIBRARY_NAME
    packaged.write_bytes(b"")
    os.utime(packaged, (500, 500))
    monkeypatch.setenv("CC", "false")
    assert library_path() == packaged
    (elsewhere / "cache").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(elsewhere / "missing"))
    assert library_path() == packaged


@pytest.mark.parametrize(
    ("compiler", "source", "reason"),
    [
        ("false", "", "false failed: no message"),
        ("/no/such/compiler", "", "/no/such/compiler does not start"),
        (COMPILER, "int broken(", "failed: "),
    ],
)
def test_a_library_that_cannot_be_built_is_reported(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, compiler: str, source: str, reason: str
) -> None:
    monkeypatch.setenv("CC", compiler)
    (elsewhere / "native/one.c").write_text(source)
    with pytest.raises(ShimUnavailableError, match=reason):
        library_path()
    assert list((elsewhere / "cache/sentineld").iterdir()) == []


def test_without_sources_nothing_can_be_built(elsewhere: Path) -> None:
    (elsewhere / "native/one.c").unlink()
    with pytest.raises(ShimUnavailableError, match=r"neither .* nor its sources"):
        library_path()


@pytest.fixture
def temporary(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files; the cache cannot be used."""
    (elsewhere / "cache").write_text("a file")
    monkeypatch.setattr(tempfile, "tempdir", str(elsewhere / "tmp"))
    (elsewhere / "tmp").mkdir()
    return elsewhere / "tmp"


def test_without_a_cache_a_private_folder_is_used(temporary: Path) -> None:
    built = library_path()
    assert built.parent == temporary / f"sentineld-{os.getuid()}"
    assert built.parent.stat().st_mode & 0o077 == 0
    assert library_path() == built
    assert list(temporary.iterdir()) == [built.parent]


@pytest.mark.parametrize("kind", ["writable", "link", "file"])
def test_a_folder_that_others_can_change_is_not_used(temporary: Path, kind: str) -> None:
    other, place = temporary / "other", temporary / f"sentineld-{os.getuid()}"
    other.mkdir()
    if kind == "writable":
        place.mkdir()
        place.chmod(0o777)
    elif kind == "link":
        place.symlink_to(other)
    else:
        place.touch()
    built = library_path()
    assert built.parent not in (other, place)
    assert built.parent.stat().st_mode & 0o077 == 0
    assert list(other.iterdir()) == []


def refusal(library: Path) -> str:
    """The message with which a library is refused. Another process loads the library, so that it
    does not stay loaded in this process."""
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from sentineld.shim.native import Native, ShimUnavailableError\n"
        "try: Native(Path(sys.argv[1]))\n"
        "except ShimUnavailableError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, library],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    return done.stdout


def test_a_library_of_another_protocol_is_refused(tmp_path: Path) -> None:
    source, library = tmp_path / "one.c", tmp_path / "one.so"
    for text, reason in (
        ("int sentinel_version(void) { return 99; }", f"has protocol 99, not {SHIM_VERSION}"),
        ("int another(void) { return 3; }", "does not load"),
    ):
        source.write_text(text)
        subprocess.run([COMPILER, "-shared", "-fPIC", "-o", library, source], check=True)
        assert reason in refusal(library)


def test_what_is_no_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("not a library")
    assert "does not load" in refusal(tmp_path / "text.so")
    assert "does not load" in refusal(tmp_path / "none.so")


def test_the_control_segment_has_the_protocols_words() -> None:
    found = run(
        LOAD
        + """
import os
from sentineld.observe.control_segment import ControlSegment
segment = ControlSegment(native.control_fd)
words = native.control_bytes(0, 16)
print(json.dumps({
    "heap": [segment.heap_base == native.word(0x20), segment.heap_bytes == native.word(0x28)],
    "magic": words == os.pread(native.control_fd, 16, 0),
    "event": os.readlink(f"/proc/self/fd/{native.event_fd}"),
    "residency": native.residency_fd,
}))
"""
    )
    assert found == {
        "heap": [True, True],
        "magic": True,
        "event": "anon_inode:[eventfd]",
        "residency": -1,
    }


def test_the_daemon_is_woken_once_at_the_position_that_it_has_asked_for() -> None:
    found = run(
        LOAD
        + """
import os
from sentineld.observe.control_segment import ControlSegment
native.enable(True)
segment = ControlSegment(native.control_fd)

def wake_ups(pass_boundary):
    pass_boundary()
    try:
        return os.eventfd_read(native.event_fd)
    except BlockingIOError:
        return 0

def forward():
    native.forward(0)

print(json.dumps([
    wake_ups(native.step_begin),
    [segment.set_wake_position(1 << 32 | 2), *(wake_ups(forward) for _ in range(3))],
    [segment.set_wake_position(1 << 32 | 3), wake_ups(forward)],
    [segment.set_wake_position(2 << 32), wake_ups(forward), wake_ups(native.step_begin)],
    [segment.set_wake_position(2 << 32 | 7), wake_ups(native.step_begin)],
    [segment.set_wake_position(3 << 32 | 1), segment.set_wake_position(0), wake_ups(forward)],
]))
"""
    )
    assert found == [
        0,
        [False, 0, 1, 0],
        [True, 0],  # the boundary has been passed already
        [False, 0, 1],
        [False, 1],  # the step has no boundary 7
        [False, True, 0],
    ]


def test_a_file_that_is_no_layout_is_refused_with_the_problem() -> None:
    found = run(
        LOAD
        + """
import os
fd = os.memfd_create("layout")
os.write(fd, b"x" * 500)
print(json.dumps([native.layout(fd), native.word(0xD0)]))
"""
    )
    problem, layout_id = found
    assert problem
    assert layout_id == 0


def test_the_heap_of_a_machine_with_much_memory_is_as_large_as_possible() -> None:
    assert default_heap_pages(1 << 20) == 2 << 20
    assert default_heap_pages(1 << 33) == HEAP_PAGES_MAX
    found = run(
        """
import json, os
from sentineld.shim import native
os.environ["SENTINELD_SHIM_HEAP_BYTES"] = str(native.HEAP_PAGES_MAX * os.sysconf("SC_PAGE_SIZE"))
native.Native(native.library_path()).start()
print(json.dumps("started"))
"""
    )
    assert found == "started"


def test_a_heap_without_room_is_reported() -> None:
    found = run(
        """
import json, os
os.environ["SENTINELD_SHIM_HEAP_BYTES"] = str(1 << 47)
from sentineld.shim.native import Native, ShimUnavailableError, library_path
try: Native(library_path()).start()
except ShimUnavailableError as error: print(json.dumps(str(error)))
"""
    )
    assert found.startswith("cannot reserve the shim's heap or shared memory: ")
