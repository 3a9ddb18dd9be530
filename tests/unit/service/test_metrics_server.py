# SPDX-License-Identifier: Apache-2.0
"""The metrics' HTTP server: a port in use, silent and slow clients, and simultaneous scrapes."""

from __future__ import annotations

import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast
from wsgiref.simple_server import WSGIServer, make_server

import pytest

from sentineld.base.errors import SentinelError
from sentineld.service import metrics_server
from sentineld.service.exposition import Family
from sentineld.service.metrics_server import CONNECTIONS_MAX, MetricsServer
from tests.unit.waiting import PATIENCE_S, wait


def gauge(name: str, value: float) -> list[Family]:
    return [Family(name, "gauge", "A value.", (), [((), value)])]


def collect() -> list[Family]:
    return gauge("test_value", 7)


def scrape(server: MetricsServer) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=60) as answer:
        text: str = answer.read().decode()
        return text


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    made = MetricsServer("127.0.0.1", 0, collect)
    yield made
    made.close()


def test_a_port_in_use_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "RETRY_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        server = MetricsServer("127.0.0.1", occupied.getsockname()[1], collect)
        assert server.problem is not None
        assert "cannot serve metrics on 127.0.0.1:" in str(server.problem)
        assert "metrics_port" in server.problem.hint
    wait(lambda: server.problem is None)
    assert "test_value 7.0" in scrape(server)
    server.close()


def test_a_server_that_is_closed_while_it_binds_its_port_does_not_serve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics_server, "RETRY_S", 0.05)
    binding, closed = threading.Event(), threading.Event()
    bound = []

    def bind_slowly(*arguments: Any, **options: Any) -> WSGIServer:
        made = make_server(*arguments, **options)
        binding.set()
        assert closed.wait(PATIENCE_S)
        bound.append(made)
        return made

    with socket.create_server(("127.0.0.1", 0)) as occupied:
        server = MetricsServer("127.0.0.1", occupied.getsockname()[1], collect)
        monkeypatch.setattr(metrics_server, "make_server", bind_slowly)
    assert binding.wait(PATIENCE_S)
    server.close()
    closed.set()
    wait(lambda: bool(bound))
    wait(lambda: bound[0].fileno() == -1)


def test_an_address_that_the_machine_does_not_have_yet_is_tried_again() -> None:
    server = MetricsServer("192.0.2.1", 0, collect)
    assert "cannot serve metrics on 192.0.2.1:0" in str(server.problem)
    server.close()


@pytest.mark.parametrize("address", ["no.such.host.invalid.", "127.0.0.1.1"])
def test_an_impossible_address_is_an_error(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(MetricsServer, "_bind", unknown)
    with pytest.raises(SentinelError, match="cannot serve metrics on") as refused:
        MetricsServer(address, 0, collect)
    assert refused.value.code == "bad-config"


def is_closed_by_server(connection: socket.socket) -> bool:
    """Wait until the server has closed the connection; returns False if it sends data instead."""
    connection.settimeout(PATIENCE_S)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:  # the server received data after it had closed the connection
        return True


def test_silent_connections_are_limited_and_expire(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_server, "CONNECTION_S", 1.0)
    monkeypatch.setattr(metrics_server._QuietHandler, "timeout", 10 * PATIENCE_S)
    silent = [
        socket.create_connection(("127.0.0.1", server.port)) for _ in range(2 * CONNECTIONS_MAX)
    ]
    for connection in silent:
        assert is_closed_by_server(connection)
        connection.close()
    monkeypatch.setattr(metrics_server, "CONNECTION_S", 10 * PATIENCE_S)
    places = cast(Any, server)._server._places
    wait(lambda: places._value == CONNECTIONS_MAX)  # the threads end after their connections
    assert "test_value 7.0" in scrape(server)


def test_a_slow_request_expires(server: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "CONNECTION_S", 1.0)
    monkeypatch.setattr(metrics_server._QuietHandler, "timeout", 10 * PATIENCE_S)
    with socket.create_connection(("127.0.0.1", server.port)) as slow:
        slow.sendall(b"GET / HTTP/1.0\r\nX-Header: ")
        assert is_closed_by_server(slow)


def test_closing_the_server_closes_its_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "CONNECTION_S", 10 * PATIENCE_S)
    monkeypatch.setattr(metrics_server._QuietHandler, "timeout", 10 * PATIENCE_S)
    server = MetricsServer("127.0.0.1", 0, lambda: gauge("value", 7))
    places = cast(Any, server)._server._places
    with socket.create_connection(("127.0.0.1", server.port)) as slow:
        slow.sendall(b"GET / HTTP/1.0\r\n")
        wait(lambda: places._value < CONNECTIONS_MAX)
        server.close()
        assert is_closed_by_server(slow)


class Slow:
    """A slow metric that counts how many threads compute it at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._computing = self.worst = 0

    def collect(self) -> list[Family]:
        with self._lock:
            self._computing += 1
            self.worst = max(self.worst, self._computing)
        time.sleep(0.05)
        with self._lock:
            self._computing -= 1
        return gauge("slow", self.worst)


def test_a_scrape_is_computed_once_at_a_time() -> None:
    slow = Slow()
    server = MetricsServer("127.0.0.1", 0, slow.collect)
    with ThreadPoolExecutor(CONNECTIONS_MAX) as pool:
        answers = list(pool.map(scrape, [server] * CONNECTIONS_MAX))
    assert all("slow 1.0" in answer for answer in answers)
    assert slow.worst == 1
    server.close()


def test_nothing_is_printed_if_a_client_does_not_read_its_answer(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    text = "A long help text. " * 1_000_000  # more than all buffers of the connection
    monkeypatch.setattr(metrics_server._QuietHandler, "timeout", 0.5)
    server = MetricsServer("127.0.0.1", 0, lambda: [Family("long", "gauge", text, (), [])])
    with socket.create_connection(("127.0.0.1", server.port)) as silent:
        silent.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        wait(lambda: len(silent.recv(1, socket.MSG_PEEK)) == 1)
        assert server._server is not None
        places = server._server._places
        wait(lambda: places._value == CONNECTIONS_MAX)  # the server has given up
    server.close()
    assert capfd.readouterr().err == ""


def test_an_error_in_a_scrape_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> list[Family]:
        raise ValueError("no figures")

    server = MetricsServer("127.0.0.1", 0, broken)
    with pytest.raises(urllib.error.HTTPError):
        scrape(server)
    server.close()
    assert "no figures" in caplog.text
