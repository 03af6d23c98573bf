"""Describe why a connection failed, with the fix, without error numbers and OpenSSL's texts."""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Iterator
from typing import cast

import httpx

_BY_ERRNO = {
    errno.ECONNREFUSED: "nothing listens at this address",
    errno.ECONNRESET: "the connection was closed",
    errno.EPIPE: "the connection was closed",
    errno.EHOSTUNREACH: "there is no route to this host",
    errno.ENETUNREACH: "there is no route to this network",
}


def reason_of(error: httpx.HTTPError) -> str:
    """Return why a request failed."""
    if isinstance(error, httpx.TimeoutException):
        return "timed out"
    for link in _chain(error):
        if isinstance(link, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted: {link.verify_message}"
        if isinstance(link, ssl.SSLError):
            return "what answers does not speak TLS as https needs it"
        if isinstance(link, socket.gaierror):
            return "no address is known for this host's name"
        if isinstance(link, OSError) and link.errno in _BY_ERRNO:
            return _BY_ERRNO[link.errno]
    return str(error) or (
        "the connection was closed" if isinstance(error, httpx.NetworkError) else type(error).__name__
    )


def remedy_of(error: httpx.TransportError) -> str:
    """Return the remedy of a failure that has the same one for any service; "" for other failures."""
    for link in _chain(error):
        if isinstance(link, ssl.SSLCertVerificationError):
            return "name the CA that signed it in SSL_CERT_FILE, or correct the address"
        if isinstance(link, ssl.SSLError):
            return "is it http:// in place of https://, or another port?"
        if isinstance(link, socket.gaierror):
            return "check the spelling of the host's name, and that this machine is online"
    return ""


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        if isinstance(link, BaseExceptionGroup):
            # A host with several addresses has one attempt for each.
            yield from cast(BaseExceptionGroup[BaseException], link).exceptions
        link = link.__cause__ or link.__context__
