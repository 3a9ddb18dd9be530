# SPDX-License-Identifier: Apache-2.0
"""Serves the metrics over HTTP, by default on the loopback address.

Any program that can reach the address can connect, so the number of connections and the time of
each connection are limited.
"""

from __future__ import annotations

import errno
import io
import logging
import math
import socket
import threading
import time
from collections.abc import Callable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from sentineld.base.errors import SentinelError
from sentineld.base.log_events import LogEvent, about
from sentineld.service.exposition import Collect, exposition_app

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 16
"""Maximum number of connections that are served at a time; further connections are closed."""
CONNECTION_S = 20.0
"""Time limit of a connection, whatever the client sends or reads meanwhile."""
RETRY_S = 5.0
"""Pause between two attempts to bind a port that another process uses."""
SCRAPING_SHARE = 0.2
"""Largest share of the time that may be spent on computing answers. The share is limited because
any user of the machine can request answers."""
PAUSE_S = 1.0
"""Pause after accept() has failed, for example for lack of descriptors. The listener stays
readable, so without a pause accept() would be called again and again."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(self, *arguments: Any) -> None:
        self._places = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self._expiries_s: dict[Any, float] = {}  # by connection: when its time is over
        super().__init__(*arguments)

    def get_request(self) -> Any:
        """Accept a connection. Raises OSError, which the base class ignores."""
        try:
            return super().get_request()
        except OSError as error:
            log.warning(
                "no metrics are served for %g s: %s",
                PAUSE_S,
                error.strerror,
                extra=about(LogEvent.METRICS_NOT_SERVED),
            )
            time.sleep(PAUSE_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve the connection in a thread, or close it if too many connections are open."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        self._expiries_s[request] = time.monotonic() + CONNECTION_S
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be started
            self._ended(request)
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._ended(request)

    def service_actions(self) -> None:
        """Shut down the connections whose time is over. serve_forever() calls this at least twice a
        second, except after a failed accept().

        The handler's time-out applies to each read and write separately, so it does not limit the
        time of a slow connection.
        """
        self._shut_down_expired(time.monotonic())

    def server_close(self) -> None:
        """Close the listener, and shut down all connections."""
        super().server_close()
        self._shut_down_expired(math.inf)

    def _ended(self, request: Any) -> None:
        del self._expiries_s[request]
        self._places.release()

    def _shut_down_expired(self, now_s: float) -> None:
        for request, expiry_s in self._expiries_s.copy().items():
            if now_s >= expiry_s:
                _shut_down(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: a client that hangs up is not an error of the daemon."""


class _ServerV6(_Server):
    address_family = socket.AF_INET6


class _QuietHandler(WSGIRequestHandler):
    timeout = 10  # seconds; disconnects silent clients

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Log nothing: scrapes are frequent and uninteresting."""

    def get_stderr(self) -> Any:
        """Where wsgiref prints a traceback if the client does not read the answer: nowhere."""
        return io.StringIO()


_TEMPORARY = (errno.EADDRINUSE, errno.EADDRNOTAVAIL, socket.EAI_AGAIN)
"""Errors of bind() and of the resolver after which binding is tried again. At boot, the daemon may
start before the machine has its addresses."""


class MetricsServer:
    """Serves metrics from threads of its own.

    If another process uses the port, or if the machine does not have the address yet, the daemon
    runs without metrics until the port can be bound.
    """

    def __init__(self, address: str, port: int, collect: Collect) -> None:
        """port: 0 picks a free port; the attribute `port` then has its number.
        collect: called for each scrape; calls do not overlap.

        Raises SentinelError("bad-config") if binding fails with an error that is not in _TEMPORARY.
        """
        self.problem: SentinelError | None = None
        """The reason why no metrics are served now; None: they are served."""
        self.port = port
        self._address = address
        self._collect = collect
        self._server: WSGIServer | None = None
        self._closing = threading.Lock()
        """Held while a server is published in `_server`, and while `_closed` is set, so that
        close() finds each server that will be served."""
        self._closed = threading.Event()
        self._scraping = threading.Lock()
        self._idle_until_s = 0.0
        try:
            self._server = self._bind()
        except OSError as error:
            self.problem = SentinelError(
                "bad-config",
                f"cannot serve metrics on {address}:{port}: {error.strerror or error}",
                "set metrics_address and metrics_port; port 0 disables metrics",
            )
            if error.errno not in _TEMPORARY:
                raise self.problem from None
            log.warning(
                "%s; trying again every %g s",
                self.problem,
                RETRY_S,
                extra=about(LogEvent.METRICS_NOT_SERVED),
            )
        threading.Thread(target=self._run, name="metrics", daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        with self._closing:
            self._closed.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _bind(self) -> WSGIServer:
        kind = _ServerV6 if ":" in self._address else _Server
        server = make_server(
            self._address,
            self.port,
            self._paced(exposition_app(self._collect)),
            server_class=kind,
            handler_class=_QuietHandler,
        )
        self.port = server.server_port
        return server

    def _paced(self, app: Any) -> Callable[[Any, Any], Any]:
        """Wrap the application: its calls run one at a time, and take at most SCRAPING_SHARE of the
        time."""

        def paced(environ: Any, start_response: Any) -> Any:
            with self._scraping:
                self._closed.wait(max(0.0, self._idle_until_s - time.monotonic()))
                begin_s = time.thread_time()
                try:
                    return app(environ, start_response)
                except Exception:
                    log.exception("a scrape failed", extra=about(LogEvent.INTERNAL_ERROR))
                    raise
                finally:
                    took_s = time.thread_time() - begin_s
                    self._idle_until_s = time.monotonic() + took_s * (1 / SCRAPING_SHARE - 1)

        return paced

    def _run(self) -> None:
        while self._server is None:
            if self._closed.wait(RETRY_S):
                return
            try:
                server = self._bind()
            except OSError:
                continue
            with self._closing:
                if self._closed.is_set():
                    server.server_close()
                    return
                self._server = server
            self.problem = None
            log.info(
                "metrics are served on %s:%d now",
                self._address,
                self.port,
                extra=about(LogEvent.METRICS_SERVED),
            )
        self._server.serve_forever()


def _shut_down(request: socket.socket) -> None:
    try:
        request.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # the connection is closed already
