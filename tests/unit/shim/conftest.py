# SPDX-License-Identifier: Apache-2.0
"""Compiles some of the shim's C files with harness.c into a library for the tests."""

from __future__ import annotations

import ctypes

import pytest

from tests.unit.shim.harness import compile_harness


@pytest.fixture(scope="session")
def harness(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    path = tmp_path_factory.mktemp("harness") / "harness.so"
    compile_harness(path, "-O1")
    library = ctypes.CDLL(str(path))
    library.test_heap_new.restype = ctypes.c_void_p
    library.test_heap_new.argtypes = (ctypes.c_uint64,)
    library.test_heap_take.restype = ctypes.c_void_p
    library.test_heap_take.argtypes = (ctypes.c_void_p, ctypes.c_uint64)
    library.test_heap_give.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    library.test_heap_delete.argtypes = (ctypes.c_void_p,)
    library.test_heap_blocks.restype = ctypes.c_uint32
    library.test_heap_blocks.argtypes = (ctypes.c_void_p,)
    library.test_heap_live_pages.restype = ctypes.c_uint64
    library.test_heap_live_pages.argtypes = (ctypes.c_void_p,)
    library.heap_drop_free.argtypes = (ctypes.c_void_p,)
    library.test_arena_new.restype = ctypes.c_void_p
    library.test_arena_new.argtypes = (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p))
    library.arena_take.restype = ctypes.c_void_p
    library.arena_take.argtypes = (
        ctypes.c_void_p,
        ctypes.c_uint32,
        ctypes.c_uint64,
        ctypes.c_uint32,
    )
    library.arena_populate.argtypes = (ctypes.c_void_p, ctypes.c_uint32)
    library.arena_find.restype = ctypes.c_int64
    library.arena_find.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    library.test_arena_free.argtypes = (ctypes.c_void_p, ctypes.c_uint32)
    library.arena_delete.argtypes = (ctypes.c_void_p,)
    library.test_emulation_new.restype = ctypes.c_void_p
    library.test_emulation_new.argtypes = (
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_uint32,
        ctypes.POINTER(ctypes.c_char_p),
    )
    library.test_emulation_delete.argtypes = (ctypes.c_void_p,)
    library.test_emulation_fd.argtypes = (ctypes.c_void_p,)
    library.test_emulation_charge.argtypes = (
        ctypes.c_void_p,
        ctypes.c_uint32,
        ctypes.POINTER(ctypes.c_uint32),
    )
    for name in ("slot_born", "slot_dropped"):
        getattr(library, f"emulation_{name}").argtypes = (ctypes.c_void_p, ctypes.c_uint32)
    library.emulation_slot_sized.argtypes = (ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64)
    for name in ("heap_born", "heap_dropped"):
        function = getattr(library, f"emulation_{name}")
        function.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64)
    library.test_schedule_new.restype = ctypes.c_void_p
    library.test_schedule_new.argtypes = (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p))
    library.test_schedule_delete.argtypes = (ctypes.c_void_p,)
    library.schedule_pass.argtypes = (ctypes.c_void_p, ctypes.c_uint64)
    library.test_schedule_due.restype = ctypes.c_uint32
    library.test_schedule_due.argtypes = (
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.POINTER(ctypes.c_uint32),
    )
    library.test_schedule_done.argtypes = (
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_uint64,
        ctypes.c_uint64,
    )
    library.test_schedule_late.restype = ctypes.c_uint64
    library.test_schedule_late.argtypes = (ctypes.c_void_p,)
    library.flight_arrive.argtypes = (ctypes.c_void_p, ctypes.c_uint64)
    library.flight_active.restype = ctypes.c_bool
    library.flight_active.argtypes = (ctypes.c_void_p,)
    library.emulation_recount.argtypes = (ctypes.c_void_p, ctypes.c_uint64)
    library.emulation_due.restype = ctypes.c_uint64
    library.emulation_due.argtypes = (ctypes.c_void_p, ctypes.c_bool)
    library.delay_spend.restype = ctypes.c_uint64
    library.delay_spend.argtypes = (ctypes.c_uint64,)
    library.emulation_paid.argtypes = (ctypes.c_void_p, ctypes.c_uint64)
    return library
