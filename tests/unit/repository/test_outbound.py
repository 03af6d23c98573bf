"""Nothing but the guard makes a client of HTTP for an address that a user names."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[3]

#: Every other place that opens connections, and whom it calls.
OTHERS = {
    "shared/synth/bus/connection.py": "the bus, at the operator's address",
    "shared/synth/bus/server/embedded.py": "the nats-server that it has started",
    "shared/synth/outbound/aiohttp_transport.py": "what the modules with a client call; the guard checks each address",
    "shared/synth/taskapp/llm.py": "the model that a task app was given; it runs in the task app",
    "shared/synth/weights/local_model.py": "the model hub, by a model's name, where the operator allows it",
    "services/synth/gateway/chat_proxy/proxy.py": "an inference replica, at the address that it announced on the bus",
    "services/synth/client/connections/clients.py": "what the client calls: a key goes to confirmed origins alone",
    "services/synth/local/processes/http.py": "processes of this machine, without a key",
    "services/synth/local/deployments/modal_app.py": "Modal, for a user's own account",
    "services/synth/cli/hardening/network.py": "the operator's own bus and ports, without a key",
    "services/synth/cli/transfer/pull.py": "the model hub, by a model's name, on the user's machine",
    "services/synth/judge/api/endpoints.py": "an inference replica, and the providers that the operator has set up",
    "services/synth/trainer/owner/processes/training_forks.py": "its ends of the pipes of a training process",
    "services/synth/rollouts/clients/recorder.py": "an inference replica",
    "services/synth/rollouts/clients/task_app.py": "a task app, by the guard's transport",
    "services/synth/rollouts/clients/teacher.py": "an inference replica",
}

_MAKERS = {
    "httpx": {
        "Client",
        "AsyncClient",
        "HTTPTransport",
        "AsyncHTTPTransport",
        "get",
        "post",
        "put",
        "request",
        "stream",
    },
    "httpcore": {"ConnectionPool", "AsyncConnectionPool", "AnyIOBackend", "AsyncHTTPProxy", "HTTPProxy", "request"},
    "asyncio": {"open_connection"},
    "socket": {"create_connection"},
}
_CLIENTS = {
    *("aiohttp", "anthropic", "botocore", "fsspec", "ftplib", "http.client", "huggingface_hub", "modal", "openai"),
    *("pycurl", "requests", "smtplib", "urllib.request", "urllib3", "websockets", "websocket"),
    "synth.outbound.aiohttp_transport",
}


def opens_connections(source: str) -> set[str]:
    """What of a module's text makes a client."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            found |= {f"{node.module}.{a.name}" for a in node.names if a.name in _MAKERS.get(node.module, set())}
        # An annotation makes nothing; a call does, and so do the calls of a class that is one of these.
        elif isinstance(node, ast.ClassDef):
            bases = [base for base in node.bases if isinstance(base, ast.Attribute)]
            owned = [(base.value.id, base.attr) for base in bases if isinstance(base.value, ast.Name)]
            found |= {f"{owner}.{name}" for owner, name in owned if name in _MAKERS.get(owner, set())}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if isinstance(owner, ast.Name) and node.func.attr in _MAKERS.get(owner.id, set()):
                found.add(f"{owner.id}.{node.func.attr}")
            if node.func.attr in ("create_connection", "sock_connect"):
                found.add(node.func.attr)
        found |= {name for name in names if any(name == c or name.startswith(f"{c}.") for c in _CLIENTS)}
    return found


def test_every_client_is_the_guards_or_calls_what_no_user_names():
    making: dict[str, set[str]] = {}
    for root in ("shared", "services"):
        for file in (ROOT / root).rglob("*.py"):
            name = file.relative_to(ROOT).as_posix()
            if found := opens_connections(file.read_text()):
                making[name] = found
    guarded = making.pop("shared/synth/outbound/http_guard.py")
    assert guarded == {
        *("httpx.AsyncClient", "httpx.AsyncHTTPTransport"),
        *("httpcore.AnyIOBackend", "httpcore.AsyncConnectionPool"),
        *("synth.outbound.aiohttp_transport", "synth.outbound.aiohttp_transport.AiohttpTransport"),
    }
    unknown = {name: found for name, found in making.items() if name not in OTHERS}
    assert not unknown, f"these open connections beside synth.outbound.http_guard: {unknown}"
    assert not set(OTHERS) - set(making) - {"shared/synth/bus/connection.py"}, "no longer true: correct the list"


def test_a_client_of_any_make_is_found():
    for text in (
        "import httpx\nhttpx.AsyncClient()",
        "from httpx import AsyncClient",
        "import httpx\nclass Own(httpx.AsyncClient): ...",
        "import urllib.request as u",
        "from urllib import request",
        "def f():\n    import requests",
        "import asyncio\nasyncio.open_connection('a', 1)",
        "loop.create_connection(p, 'a', 1)",
    ):
        assert opens_connections(text), text
    assert not opens_connections("import httpx\ndef f(c: httpx.AsyncClient): return httpx.URL('a')")
