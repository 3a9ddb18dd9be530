# SPDX-License-Identifier: Apache-2.0
"""The memory of one user's messages, compared with a simple model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.observe.message_memory import ROOT_BYTES, SMALL_BYTES, USER_BYTES, Account
from sentineld.observe.message_memory import MessageMemory as Memory

USER = 1000
ACCOUNTS = 3
BYTES = st.integers(1, USER_BYTES)


def test_small_frames_are_counted_when_they_are_whole() -> None:
    memory, one = Memory(lambda uid: None), Account(USER)
    for _ in range(10 * USER_BYTES // SMALL_BYTES):
        assert memory.may_read(one, SMALL_BYTES)
    memory.received(one, USER_BYTES)
    assert not memory.may_read(one, SMALL_BYTES)


def test_an_admitted_frame_is_read_to_its_end() -> None:
    memory, one, other = Memory(lambda uid: None), Account(USER), Account(USER)
    assert memory.may_read(one, USER_BYTES)
    assert memory.may_read(one, USER_BYTES)
    assert not memory.may_read(other, 0)
    memory.close(one)
    assert memory.may_read(other, 0)


@pytest.mark.parametrize(("uid", "limit_bytes"), [(0, ROOT_BYTES), (USER, USER_BYTES)])
def test_users_have_limits_of_their_own(uid: int, limit_bytes: int) -> None:
    woken: list[int] = []
    memory, one = Memory(woken.append), Account(uid)
    memory.received(one, limit_bytes)
    assert not memory.may_read(one, 0)
    assert memory.may_read(Account(uid + 1), 0)
    memory.handled(one, limit_bytes // 2 - 1)
    assert woken == []
    memory.handled(one, 1)
    assert woken == [uid]
    assert memory.may_read(one, 0)


@given(st.lists(st.tuples(st.integers(0, ACCOUNTS - 1), st.sampled_from("mrhc"), BYTES)))
def test_reading_is_allowed_below_the_limit(actions: list[tuple[int, str, int]]) -> None:
    """actions: (account, action, bytes). The actions are:

    m: ask whether a frame may be read.
    r: receive a message.
    h: handle a message.
    c: close the connection and open another connection in its place.
    """
    woken: list[int] = []
    memory = Memory(woken.append)
    accounts = [Account(USER) for _ in range(ACCOUNTS)]
    admitted = [0] * ACCOUNTS
    unhandled: list[list[int]] = [[] for _ in range(ACCOUNTS)]
    waiting = False
    for number, action, size_bytes in actions:
        account, was_woken, handled = accounts[number], len(woken), bool(unhandled[number])
        if action == "m":
            used = sum(admitted) + sum(map(sum, unhandled))
            allowed = admitted[number] > 0 or used < USER_BYTES
            assert memory.may_read(account, size_bytes) == allowed
            waiting = waiting or not allowed
            if allowed and not admitted[number] and size_bytes > SMALL_BYTES:
                admitted[number] = size_bytes
        elif action == "r":
            memory.received(account, size_bytes)
            admitted[number] = 0
            unhandled[number].append(size_bytes)
        elif action == "h" and unhandled[number]:
            memory.handled(account, unhandled[number].pop())
        elif action == "c":
            memory.close(account)
            for late in unhandled[number]:  # a session can handle messages after the close
                memory.handled(account, late)
            admitted[number], unhandled[number] = 0, []
            accounts[number] = Account(USER)
        used = sum(admitted) + sum(map(sum, unhandled))
        given = action == "c" or (action == "h" and handled)
        wakes = waiting and given and 2 * used <= USER_BYTES
        assert len(woken) - was_woken == wakes
        waiting = waiting and not wakes
    for account in accounts:
        memory.close(account)
    assert all(memory.may_read(Account(USER), SMALL_BYTES) for _ in range(100))
