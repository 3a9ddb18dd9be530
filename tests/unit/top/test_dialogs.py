# SPDX-License-Identifier: Apache-2.0
"""The results that the dialogs return when keys are pressed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from textual.app import App
from textual.screen import ModalScreen

from sentineld.base.units import FastBudget
from sentineld.top.dialogs import Confirm, Help, Prompt


def answer(dialog: ModalScreen[Any], *keys: str) -> list[Any]:
    """Press keys; return a list with the dialog's result. It is empty if the dialog stays open."""
    answers: list[Any] = []

    async def run() -> None:
        app: App[None] = App()
        async with app.run_test(size=(60, 20)) as pilot:
            app.push_screen(dialog, answers.append)
            await pilot.pause()
            await pilot.press(*keys)
            await pilot.pause()

    asyncio.run(run())
    return answers


def prompt() -> Prompt:
    return Prompt("Fast memory [of] 7", "A share of the peak.", "20%", FastBudget.parse)


@pytest.mark.parametrize(
    ("keys", "answers"),
    [
        (["enter"], ["20%"]),
        (["end", "ctrl+u", *"3G", "space", "enter"], ["3G"]),
        (["end", "ctrl+u", *"no", "enter"], []),  # not valid
        (["end", "ctrl+u", *"no", "enter", "escape"], [None]),
    ],
)
def test_a_prompt_returns_a_valid_text(keys: list[str], answers: list[str | None]) -> None:
    assert answer(prompt(), *keys) == answers


@pytest.mark.parametrize(
    ("key", "answers"),
    [("y", [True]), ("n", [False]), ("escape", [False]), ("enter", []), ("x", [])],
)
def test_only_y_means_yes(key: str, answers: list[bool]) -> None:
    assert answer(Confirm("Detach process 7?", "It continues to run."), key) == answers


@pytest.mark.parametrize("key", ["escape", "q", "question_mark", "enter"])
def test_the_help_closes(key: str) -> None:
    assert answer(Help("Keys"), key) == [None]
