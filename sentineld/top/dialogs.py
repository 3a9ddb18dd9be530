# SPDX-License-Identifier: Apache-2.0
"""The dialogs of the live view: a text to enter, a question, the help."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from sentineld.base.errors import SentinelError


class Prompt(ModalScreen[str | None]):
    """Asks for a text. The result is the text, or None if the user cancels."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "cancel", "Cancel")]

    def __init__(self, title: str, hint: str, value: str, check: Callable[[str], object]) -> None:
        """value: the initial text. check: raises SentinelError if the text is not valid."""
        super().__init__()
        self._title, self._hint, self._value, self._check = title, hint, value, check

    def compose(self) -> ComposeResult:
        """The title, the hint, the field and the error."""
        with Vertical(classes="dialog"):
            yield Static(self._title, classes="title", markup=False)
            yield Static(self._hint, markup=False)
            yield Input(self._value)
            yield Static("", id="problem", markup=False)
            yield Static("Enter: continue   Esc: cancel", classes="keys", markup=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Return the text if it is valid; otherwise, show the problem."""
        try:
            self._check(event.value)
        except SentinelError as error:
            self.query_one("#problem", Static).update(str(error))
        else:
            self.dismiss(event.value.strip())

    def action_cancel(self) -> None:
        """Return None."""
        self.dismiss(None)


class Confirm(ModalScreen[bool]):
    """Asks a question. The key y answers yes; n and Esc answer no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("y", "answer(True)", "Yes"),
        ("n,escape", "answer(False)", "No"),
    ]

    def __init__(self, question: str, detail: str) -> None:
        """detail: an explanation below the question."""
        super().__init__()
        self._question, self._detail = question, detail

    def compose(self) -> ComposeResult:
        """The question and its keys."""
        with Vertical(classes="dialog"):
            yield Static(self._question, classes="title", markup=False)
            yield Static(self._detail, markup=False)
            yield Static("y: yes   n: no", classes="keys", markup=False)

    def action_answer(self, yes: bool) -> None:
        """Return the answer."""
        self.dismiss(yes)


class Help(ModalScreen[None]):
    """Shows a text until a key closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,question_mark,enter", "close", "Close")]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """The text, which scrolls if it is longer than the screen."""
        with VerticalScroll(classes="dialog"):
            yield Static(self._text, markup=False)
            yield Static("Esc: close", classes="keys", markup=False)

    def action_close(self) -> None:
        """Close the help."""
        self.dismiss(None)
