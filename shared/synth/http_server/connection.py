"""A connection's own limits: on the time and the size of headers, and on the progress of bodies.

They hold before a request has reached its route, and for every route: a client that sends half a request and waits
costs a socket for some seconds. The time of a whole body is not limited, only its slowest rate. A client that does not
read its answer gets no more of it than a buffer's size, and is disconnected after a while.
"""

from __future__ import annotations

import asyncio
import json
import logging
from http import HTTPStatus
from typing import ClassVar

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from synth.http_server.settings import HttpSettings
from synth.keys import masked

log = logging.getLogger(__name__)


def http_config(app: ASGIApp, settings: HttpSettings, *, host: str = "127.0.0.1", port: int = 0) -> uvicorn.Config:
    """Return the configuration of a server whose connections apply these settings."""

    class Protocol(BoundedProtocol):
        limits = settings

    return uvicorn.Config(
        app,
        host=host,
        port=port,
        http=Protocol,
        ws="none",
        log_config=None,
        access_log=False,
        lifespan="off",
        forwarded_allow_ips=settings.trusted_proxies,
        timeout_graceful_shutdown=2,
    )


class BoundedProtocol(HttpToolsProtocol):
    """One connection. At any time a request is awaited, or its headers or its body arrive: each has its clock."""

    limits: ClassVar[HttpSettings]

    _clock: asyncio.TimerHandle | None = None
    _in_body = False
    #: Bytes of the headers that arrive, or of the body within this window.
    _received = 0
    _reading_clock: asyncio.TimerHandle | None = None
    #: Bytes of the answer that the client had not taken when the clock was started.
    _unread = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        self._stop_reading_clock()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_reading_clock()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_reading_clock()

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        super().data_received(data)
        if self.transport.is_closing() or self._in_body:
            return
        if self._received > self.limits.http_header_bytes:
            limit = f"{self.limits.http_header_bytes:,} bytes (SYNTH_HTTP_HEADER_BYTES)"
            self._refuse(431, f"the headers of the request are longer than {limit}")
        elif self._clock is None and not self._answering:
            # An empty line before a request begins none, and ends uvicorn's own wait for it.
            self._expect_headers()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect_headers()

    def on_headers_complete(self) -> None:
        self._in_body, self._received = True, 0
        self._start_clock(self.limits.http_body_window_s, self._check_body)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body, self._received = False, 0
        self._stop_clock()
        super().on_message_complete()

    @property
    def _answering(self) -> bool:
        # None before the first request, in spite of its annotation.
        return bool(self.cycle) and not self.cycle.response_complete

    def _expect_headers(self) -> None:
        self._in_body = False
        self._start_clock(self.limits.http_header_s, self._check_headers)

    def _start_clock(self, seconds: float, check: object) -> None:
        self._stop_clock()
        self._clock = self.loop.call_later(seconds, check)  # type: ignore[arg-type]

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _check_headers(self) -> None:
        self._clock = None
        if self._answering:
            # The headers of the next request are late; the answer to the one before it is not broken off.
            self._expect_headers()
            return
        seconds = f"{self.limits.http_header_s:g} s (SYNTH_HTTP_HEADER_S)"
        self._refuse(408, f"the headers of the request did not arrive within {seconds}")

    def _check_body(self) -> None:
        self._clock = None
        if self.cycle.response_complete:
            # Data that still arrives was dropped until now: a connection that is closed at once loses its answer.
            self.transport.close()
            return
        expected = self.limits.http_body_window_s * self.limits.http_body_bytes_per_s
        # While we do not read, it is not the client that is slow.
        if self._received < expected and not self.flow.read_paused:
            rate = f"{self.limits.http_body_bytes_per_s} bytes a second (SYNTH_HTTP_BODY_BYTES_PER_S)"
            self._refuse(408, f"the body of the request comes more slowly than {rate}")
            return
        self._received = 0
        self._start_clock(self.limits.http_body_window_s, self._check_body)

    def _start_reading_clock(self) -> None:
        self._unread = self.transport.get_write_buffer_size()
        self._reading_clock = self.loop.call_later(self.limits.http_unread_s, self._check_reading)

    def _stop_reading_clock(self) -> None:
        if self._reading_clock is not None:
            self._reading_clock.cancel()
            self._reading_clock = None

    def _check_reading(self) -> None:
        unread = self.transport.get_write_buffer_size()
        if unread < self._unread:
            self._start_reading_clock()
            return
        log.warning(
            "disconnected a client that read none of %s for %g s (SYNTH_HTTP_UNREAD_S); %d bytes were kept for it",
            masked(self.scope["path"]),
            self.limits.http_unread_s,
            unread,
        )
        # A close would wait until the client takes the rest.
        self.transport.abort()

    def _refuse(self, status: int, message: str) -> None:
        """Answer for the route, if it has not begun to answer, and end the connection."""
        if self.transport.is_closing():
            return
        if not (self._answering and self.cycle.response_started):
            error: dict[str, object] = {
                "message": message,
                "type": "invalid_request",
                "param": None,
                "code": None,
                "problems": [],
            }
            body = json.dumps({"error": error, "detail": message}).encode()
            head = (
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()
