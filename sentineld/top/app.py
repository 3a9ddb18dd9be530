# SPDX-License-Identifier: Apache-2.0
"""The live view: its widgets and keys. The texts come from lines.py."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual import events, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen
from textual.widgets import DataTable, Static

from sentineld.base.errors import SentinelError
from sentineld.base.units import FastBudget
from sentineld.policies.registry import managing_names, managing_policy
from sentineld.profile.trace_file import require_writable
from sentineld.top.actions import detach, meter, switch
from sentineld.top.dialogs import Confirm, Help, Prompt
from sentineld.top.drawing import (
    COLUMNS_MIN,
    DIALOG_COLUMNS_MAX,
    DIALOG_EDGE_COLUMNS,
    PADDING_COLUMNS,
    SCROLLBAR_COLUMNS,
    STYLE_SHEET,
    Row,
    fill,
    styled,
)
from sentineld.top.lines import (
    Column,
    Line,
    Role,
    Span,
    detail_lines,
    head_line,
    help_text,
    keys_line,
    layer_columns,
    layer_rows,
    session_cells,
    session_columns,
)
from sentineld.top.polling import Control, Polled, Poller
from sentineld.top.rates import History
from sentineld.top.readings import Reading, ResidencyReading, SessionReading
from sentineld.top.words import HELP, KEYS, NO_SESSIONS

STALE_S = 5.0
"""If the daemon's answer is late by more than this duration, the view says so."""
SESSION_ROWS_MAX = 5
"""The table of sessions scrolls if it has more rows."""


class Updated(Message):
    """A poll has ended."""

    def __init__(self, polled: Polled) -> None:
        super().__init__()
        self.polled = polled


class Ended(Message):
    """An action has ended. text: its result. failed: whether it is an error."""

    def __init__(self, pid: int, text: str, failed: bool = False) -> None:
        super().__init__()
        self.pid, self.text, self.failed = pid, text, failed


class TopApp(App[None]):
    """Shows the daemon's sessions, and acts on the chosen one."""

    ENABLE_COMMAND_PALETTE = False
    CSS = STYLE_SHEET
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("b", "budget"),
        Binding("p", "policy"),
        Binding("d", "detach"),
        Binding("m", "meter"),
        Binding("r", "record"),
        Binding("space", "update"),
        Binding("question_mark,f1", "help"),
        Binding("q", "quit"),
        Binding("ctrl+c,ctrl+q", "quit", priority=True),
    ]

    def __init__(
        self,
        control: Control,
        record: Callable[[int, Path], str],
        interval_s: float,
    ) -> None:
        """record: records a trace of a process into a file and returns a line about it; raises
            SentinelError.
        interval_s: seconds between two polls.
        """
        super().__init__()
        self._control, self._record = control, record
        self._history = History()
        self.reading: Reading | None = None
        """The last answer of the daemon."""
        self._residency: ResidencyReading | None = None
        self._chosen: str | None = None  # the key of a session
        self._columns = 0
        self._answered_s = time.monotonic()
        self._patience_s = interval_s + STALE_S
        self.error: SentinelError | None = None
        """Why the last poll failed; None: it has not failed."""
        self._acting: dict[int, str] = {}
        """The action under way for a process, as a verb phrase, by the process's pid."""
        self._note = Span("")
        self._poller = Poller(control, interval_s, lambda polled: self._post(Updated(polled)))

    def compose(self) -> ComposeResult:
        """The widgets from top to bottom."""
        yield Static(id="head")
        yield DataTable[Text](id="sessions", cursor_type="row")
        yield Static(id="details")
        yield DataTable[Text](id="layers", cursor_type="none")
        yield Static(id="note")
        yield Static(id="keys")

    def on_mount(self) -> None:
        """Begin to poll."""
        self._columns = max(self.size.width, COLUMNS_MIN)
        self._main.query_one("#sessions").focus()
        self._poller.start()
        self.set_interval(1.0, self._show_note)
        self._show()

    def on_unmount(self) -> None:
        """Stop polling."""
        self._poller.stop()

    def on_resize(self, event: events.Resize) -> None:
        """Fit the texts to the width in `event`; App.size changes only after this call."""
        self._columns = max(event.size.width, COLUMNS_MIN)
        self._show()

    def on_updated(self, message: Updated) -> None:
        """Show the result of a poll."""
        polled = message.polled
        self.error = polled.error
        if polled.reading is None:
            self._show_note()
            return
        self._answered_s = time.monotonic()
        self._take(polled.reading, polled.residency)
        self._show()

    def on_ended(self, message: Ended) -> None:
        """Report the result of an action."""
        self._acting.pop(message.pid, None)
        self._note = Span(message.text, Role.WARNING if message.failed else Role.GOOD)
        self._show_note()
        self._poller.poll_now()

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Choose the session of the row."""
        if event.data_table.id == "sessions" and event.row_key.value is not None:
            self._choose(event.row_key.value)
            self._show_chosen()

    @work
    async def action_budget(self) -> None:
        """Ask for another budget."""
        session = self._session()
        if session is None:
            return
        fast = await self.push_screen_wait(
            Prompt(
                f"Fast memory of process {session.pid}",
                "A share of the peak, such as 20%, or a size, such as 48MiB.",
                session.fast,
                FastBudget.parse,
            )
        )
        if fast is not None and await self._confirmed(session, f"budget {fast}"):
            self._act(
                session.pid,
                f"plans for the budget {fast}",
                partial(switch, self._control, session.pid, fast=str(FastBudget.parse(fast))),
            )

    @work
    async def action_policy(self) -> None:
        """Ask for another policy."""
        session = self._session()
        if session is None:
            return
        policy = await self.push_screen_wait(
            Prompt(
                f"Policy of process {session.pid}",
                ", ".join(managing_names()),
                session.policy,
                lambda name: managing_policy(name.strip()),
            )
        )
        if policy is not None and await self._confirmed(session, f"policy {policy}"):
            self._act(
                session.pid,
                f"plans with the policy {policy}",
                partial(switch, self._control, session.pid, policy=policy),
            )

    @work
    async def action_detach(self) -> None:
        """Detach the process, after a confirmation."""
        session = self._session()
        if session is None:
            return
        question = f"Detach process {session.pid}?"
        detail = "It continues to run. Its pages stay where they are."
        if await self.push_screen_wait(Confirm(question, detail)):
            self._act(session.pid, "is detached", partial(detach, self._control, session.pid))

    def action_meter(self) -> None:
        """Meter one step."""
        session = self._session()
        if session is not None:
            self._act(session.pid, "is metered", partial(meter, self._control, session.pid))

    @work
    async def action_record(self) -> None:
        """Ask for a file and record a trace into it."""
        session = self._session()
        if session is None:
            return
        name = await self.push_screen_wait(
            Prompt(
                f"Record a trace of process {session.pid}",
                "File to write. One of the recorded steps is sampled, which slows it down.",
                f"trace-{session.pid}.npz",
                lambda text: require_writable(Path(text.strip())),
            )
        )
        if name is None:
            return
        path = Path(name)
        if path.exists() and not await self.push_screen_wait(
            Confirm(f"Replace {path}?", "The file exists.")
        ):
            return
        self._act(session.pid, f"is recorded into {path}", partial(self._record, session.pid, path))

    def action_update(self) -> None:
        """Poll now."""
        self._poller.poll_now()

    def action_help(self) -> None:
        """Show the help."""
        width = min(self._columns, DIALOG_COLUMNS_MAX) - DIALOG_EDGE_COLUMNS
        self.push_screen(Help(help_text(HELP, width)))

    @property
    def _main(self) -> Screen[object]:
        """The screen below all dialogs. While a dialog is open, App.query_one() of textual 2.1
        searches the dialog instead."""
        return self.screen_stack[0]

    def _session(self) -> SessionReading | None:
        """Return the chosen session. If no action on it can begin, return None and show why in the
        line above the keys."""
        reading = self.reading
        session = reading.session(self._chosen) if reading is not None else None
        if reading is None or session is None:
            self._note = Span("no session is chosen", Role.WARNING)
        elif sum(one.pid == session.pid for one in reading.sessions) > 1:
            # The view's requests name only the PID, so the daemon could act on the wrong one of
            # these sessions.
            self._note = Span(
                f"process {session.pid} has two sessions: use sentinelctl", Role.WARNING
            )
            session = None
        elif session.pid in self._acting:
            doing = self._acting[session.pid]
            self._note = Span(f"wait: process {session.pid} {doing}", Role.WARNING)
            session = None
        self._show_note()
        return session

    async def _confirmed(self, session: SessionReading, change: str) -> bool:
        if session.attached:
            verb, now = "Change", f"Now: budget {session.fast}, policy {session.policy}."
        else:
            verb, now = "Attach", "The process is not managed now."
        detail = f"{now} A plan is made; the training continues meanwhile."
        question = f"{verb} process {session.pid}: {change}?"
        return await self.push_screen_wait(Confirm(question, detail))

    def _act(self, pid: int, doing: str, act: Callable[[], str]) -> None:
        """Run an action in a thread. doing: a verb phrase about the process."""

        def run() -> None:
            try:
                self._post(Ended(pid, act()))
            except (SentinelError, OSError) as error:
                self._post(Ended(pid, str(error), failed=True))
            except Exception as error:
                # Without a message, the keys would wait for this action for ever.
                self._post(Ended(pid, f"{type(error).__name__}: {error}", failed=True))

        self._acting[pid] = doing
        self._note = Span("")
        self._show_note()
        threading.Thread(target=run, name=f"action-{pid}", daemon=True).start()

    def _post(self, message: Message) -> None:
        """Post a message from a thread; without effect if the view has ended."""
        with contextlib.suppress(RuntimeError):
            self.post_message(message)

    def _take(self, reading: Reading, residency: ResidencyReading | None) -> None:
        before = self.reading
        self._history.add(reading)
        self.reading = reading
        self._residency = residency
        if reading.session(self._chosen) is not None:
            return
        chosen = reading.sessions[0] if reading.sessions else None
        gone = before.session(self._chosen) if before is not None else None
        if before is not None and gone is not None:
            if (continued := reading.continued(gone)) is not None:
                chosen = continued
            elif before.pid == reading.pid:
                self._note = Span(f"{gone.title}: its session has ended")
        self._choose(chosen.key if chosen is not None else None)

    def _choose(self, key: str | None) -> None:
        if key != self._chosen:
            self._chosen = key
            self._poller.choose(key)

    def _show(self) -> None:
        if not self.is_running:
            return  # as in _show_note()
        width = self._columns - PADDING_COLUMNS
        self._show_note()
        self._update("keys", [keys_line(KEYS, width)])
        if self.reading is None:
            return
        self._update("head", head_line(self.reading, self._history.cpu_share, width))
        self._show_sessions(self.reading, session_columns(self._columns - SCROLLBAR_COLUMNS))
        self._show_chosen()

    def _show_sessions(self, reading: Reading, columns: list[Column]) -> None:
        table = self._main.query_one("#sessions", DataTable)
        table.display = bool(reading.sessions)
        table.styles.height = 1 + min(len(reading.sessions), SESSION_ROWS_MAX)
        rows: list[Row] = []
        for session in reading.sessions:
            cells = session_cells(session, self._history.rates(session.key))
            rows.append((session.key, [(cells[column.name],) for column in columns]))
        chosen = next((at for at, (key, _) in enumerate(rows) if key == self._chosen), 0)
        with self.prevent(DataTable.RowHighlighted):
            fill(table, columns, rows, chosen)

    def _show_chosen(self) -> None:
        assert self.reading is not None
        session = self.reading.session(self._chosen)
        if session is None:
            self._update("details", [(Span(NO_SESSIONS),)])
        else:
            rates = self._history.rates(session.key)
            self._update("details", detail_lines(session, rates, self._columns - PADDING_COLUMNS))
        table = self._main.query_one("#layers", DataTable)
        residency = self._residency
        table.display = residency is not None and residency.key == self._chosen
        if residency is not None and table.display:
            columns = layer_columns(self._columns - SCROLLBAR_COLUMNS)
            rows = [(str(at), cells) for at, cells in enumerate(layer_rows(residency, columns))]
            fill(table, columns, rows)

    def _show_note(self) -> None:
        """Show the line above the keys: a warning if the daemon does not answer, the result of the
        last action, or an action that is under way."""
        if not self.is_running:
            return  # the timer and messages can call this while textual removes the widgets
        silent_s = time.monotonic() - self._answered_s
        stale = self.error is not None or silent_s > self._patience_s
        self.set_class(stale, "stale")
        note = self._note
        if self.error is not None:
            note = Span(f"{self.error}; trying again", Role.WARNING)
        elif stale:
            note = Span(f"the daemon has not answered for {silent_s:.0f} s", Role.WARNING)
        elif self._acting and not note.text:
            pid, doing = next(iter(self._acting.items()))
            note = Span(f"process {pid} {doing} ...")
        self._update("note", [(note,)])

    def _update(self, name: str, lines: Iterable[Line]) -> None:
        self._main.query_one(f"#{name}", Static).update(Text("\n").join(map(styled, lines)))
