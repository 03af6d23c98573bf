"""The audit records of requests. A success without `operator` that changed no key has none."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from typing import Any

from fastapi.routing import iter_route_contexts
from starlette.routing import compile_path
from starlette.types import Scope as AsgiScope

from synth.access import Scope
from synth.api.audit import AuditFact, AuditKind
from synth.gateway.audit.trail import AuditTrail
from synth.gateway.passage import PASSAGE, Passage
from synth.service_secrets import DerivedSecret

_MAX_ABOUT = 200
_MAX_KNOWN = 1024
#: Parameters of paths that are secrets.
_SECRET_PARAMETERS = frozenset({"url_key", "credential"})


class RequestAudit:
    """The recorder of the results of requests and of log-ins on the bus."""

    def __init__(self, trail: AuditTrail, secret: DerivedSecret) -> None:
        """Create a recorder. secret: for digests of unknown keys, so that nobody can test guesses of a key by them."""
        self._trail = trail
        self._secret = secret.for_use("audit")
        self._routes = _Routes()

    def note_response(self, scope: AsgiScope, status: int) -> None:
        """Note a response if its status requires a record."""
        passage: Passage | None = scope.get(PASSAGE)
        if passage is None:
            return
        key = passage.caller or passage.shown
        kind: AuditKind
        if status == 401 and passage.caller is None:
            if not passage.tried:
                return
            kind = "login"
        elif status == 403 and key is not None:
            kind = "refusal"
        elif passage.caller is not None and Scope.OPERATOR in passage.caller.scopes:
            kind = "operator"
        elif status < 400 and key is not None and (passage.about is not None or scope["method"] == "DELETE"):
            kind = "change"
        else:
            return
        is_login = kind == "login"
        template, parameters = ("", {}) if is_login else self._routes.find(scope)
        fact = AuditFact(
            kind=kind,
            org=passage.org or (None if key is None else key.org),
            key=self.digest(passage.tried) if key is None else key.key_id,
            action=f"{scope['method']} {template}" if template else "",
            about=passage.about or _about(parameters),
            address=read_address(scope.get("client")),
            status=status,
        )
        self._trail.note(fact, (lambda: f"{scope['method']} {self._routes.find(scope)[0]}") if is_login else None)

    def note_bus_login(self, *, org: str | None, key: str, address: str | None) -> None:
        """Note a refused log-in on the bus. key: the id of a known key, or the `digest` of an unknown one."""
        where = read_address((address, 0)) if address else None
        self._trail.note(
            AuditFact(kind="login", org=org, key=key, action="bus login", about=None, address=where, status=401)
        )

    def digest(self, key: str) -> str:
        """Return the text that the stream has in place of an unknown key."""
        return f"unknown:{hmac.new(self._secret, key.encode(), hashlib.sha256).hexdigest()[:12]}"


class _Routes:
    """The templates of the API's routes: a request that is refused before its body is read has no route yet."""

    def __init__(self) -> None:
        self._table: list[tuple[set[str], re.Pattern[str], str]] = []
        self._known: dict[tuple[str, str], tuple[str, dict[str, str]]] = {}

    def find(self, scope: AsgiScope) -> tuple[str, dict[str, str]]:
        """Return the template of a request's route, and the parameters in its path."""
        if not self._table:
            contexts = iter_route_contexts(scope["app"].routes)
            self._table = [(set(c.methods or ()), compile_path(c.path)[0], c.path) for c in contexts if c.path]
        request = (scope["method"], scope["path"])
        if request not in self._known:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[request] = self._match(*request)
        return self._known[request]

    def _match(self, method: str, path: str) -> tuple[str, dict[str, str]]:
        for methods, pattern, template in self._table:
            match = pattern.match(path)
            if match is not None and method in methods:
                return template, match.groupdict()
        return "unmatched", {}


def read_address(client: Any) -> str | None:
    """Return the address of a connection, or `invalid` if a proxy sent it in another form."""
    if not client:
        return None
    try:
        return str(ipaddress.ip_address(client[0]))
    except ValueError:
        return "invalid"


def _about(parameters: dict[str, str]) -> str | None:
    ids = [value for name, value in parameters.items() if name not in _SECRET_PARAMETERS]
    return "/".join(ids)[:_MAX_ABOUT] or None
