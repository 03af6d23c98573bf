"""The address of something that users run (a task app, an API), to which paths are added.

Every reader of such an address must read the same host and the same path, or one would be checked and another one
called. So it may contain only characters that all readers of URLs agree about.
"""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

import idna

#: Without the characters that `urlsplit` removes, and the backslash, which some readers take for a slash.
_PRINTABLE = re.compile(r"[!-\[\]-~]*")
_HOST = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,62}))*\.?")
_FOUR_NUMBERS = re.compile(r"\d+\.\d+\.\d+\.\d+")
_PATH = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=:@%/-]*")


def base_url_fault(url: str) -> str | None:
    """Return why paths cannot be added to an address, as the end of a sentence; None if they can."""
    if not _PRINTABLE.fullmatch(url):
        return "has characters that a URL may not have"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return f"is no URL ({error})"
    if not url.lower().startswith(("http://", "https://")):
        return "does not begin with http:// or https://"
    if not parts.hostname or port == 0:
        return "names no host, or no port"
    if "@" in parts.netloc:
        return "has a user's name or a password in it"
    if "?" in url:
        return "has a query, which no path can follow"
    if "#" in url:
        return "has a fragment, which no path can follow"
    if not _is_host(parts.netloc):
        return "has a host that is neither a name nor an IP address"
    if not _PATH.fullmatch(parts.path):
        return "has a path with characters that a URL may not have"
    if any(part in (".", "..") for part in parts.path.replace("%2e", ".").replace("%2E", ".").split("/")):
        return "has a path with . or .. in it"
    return None


def under(base: str, path: str) -> str:
    """Return the address of a path below a base. path: begins with a slash."""
    return base.rstrip("/") + path


def _is_host(netloc: str) -> bool:
    host, colon, port = netloc.rpartition(":") if not netloc.endswith("]") else (netloc, "", "")
    host = host if colon else netloc
    if colon and not (port.isascii() and port.isdigit()):
        return False
    if host.startswith("["):
        try:
            ipaddress.IPv6Address(host.removeprefix("[").removesuffix("]"))
        except ValueError:
            return False
        return "%" not in host
    if _HOST.fullmatch(host) is None:
        return False
    # httpx decodes the first label, and takes four numbers for an IPv4 address. A host that it cannot read raises an
    # error.
    try:
        if host.lower().startswith("xn--"):
            idna.decode(host)
        if _FOUR_NUMBERS.fullmatch(host):
            ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return True
