"""Whatever is asked of any documented operation, the answer is never a fault of ours.

The requests are made from the API's own document, half of them as it says and half as it forbids; every second one
names things that are there.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode
from schemathesis.schemas import APIOperation

from synth.bus.connection import Connection, connect
from synth.bus.kv.secrets import SecretStore
from synth.bus.server.embedded import free_port
from synth.gateway.app import describe_api
from synth.keys import new_api_key
from synth.runtime.settings import ServiceSettings
from tests.service.process import running

pytestmark = pytest.mark.timeout(1200)

CASES = 2000
ANSWERED_WITHIN_S = 60
#: They need no key and have neither parameters nor a documented body, so no request can be wrong.
_NEVER_WRONG = {"GET /api/health", "POST /api/sdk/handshake/init"}
_DOCUMENT = describe_api().openapi()
_OPERATIONS: dict[str, APIOperation] = {
    found.ok().label: found.ok()
    for found in schemathesis.openapi.from_dict(_DOCUMENT).get_all_operations()
    if isinstance(found, Ok)
}
_NUMBERS = [
    (f"{method.upper()} {path}", parameter["name"])
    for path, operations in _DOCUMENT["paths"].items()
    for method, operation in operations.items()
    for parameter in operation.get("parameters", ())
    if parameter["in"] == "query" and "integer" in str(parameter["schema"])
]
#: With another value these make a request that is not HTTP, which the server refuses before the API reads it.
#: Hypothesis draws names from the constants of our own code, so they do occur.
_FRAMING = ("Transfer-Encoding", "Content-Length")
#: An operation without parameters has few requests that differ, so the others get more.
_EACH = math.ceil(CASES / len(_OPERATIONS)) - 4


@dataclass(frozen=True)
class Backend:
    """A gateway of its own. there: path and query parameters, by name, that name things which are there."""

    url: str
    http: requests.Session
    there: dict[str, list[str]]

    def ask(self, request: dict[str, Any]) -> None:
        """Send it; the answer must be none that is our fault, and an error must say what is wrong."""
        with self.http.request(**request, stream=True, timeout=ANSWERED_WITHIN_S) as reply:
            # An event stream has no end, so its body is not waited for.
            status, fine = reply.status_code, reply.status_code < 400
            assert status < 500 or status == 503, (request, status, reply.text)
            if status == 503:
                assert int(reply.headers["Retry-After"]) > 0, request
            assert fine or reply.json()["detail"], request


@pytest.fixture(scope="module")
def backend(settings_of: Any, bus_admin: Connection, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    key, port, folder = new_api_key(), free_port(), tmp_path_factory.mktemp("any-request")
    own = {"SYNTH_BOOTSTRAP_API_KEY": key, "SYNTH_READ_MODEL_PATH": str(folder / "gateway.db")}
    asyncio.run(_make_organisation(settings_of("gateway"), key))
    with running("gateway", settings_of("gateway"), folder / "gateway.log", port=port, **own):
        http = requests.Session()
        http.headers["Authorization"] = f"Bearer {key}"
        url = f"http://127.0.0.1:{port}"
        yield Backend(url, http, _things(url, http))


async def _make_organisation(settings: ServiceSettings, key: str) -> None:
    bus = await connect(settings, "gateway")
    await SecretStore(bus, settings.secrets_of("gateway")).ensure_api_key(key)
    await bus.close()


def _things(url: str, http: requests.Session) -> dict[str, list[str]]:
    """One of each kind, made through the API."""

    def made(path: str, **body: Any) -> dict[str, Any]:
        reply = http.post(url + path, timeout=ANSWERED_WITHIN_S, **body)
        assert reply.status_code < 300, reply.text
        return reply.json()

    native = made("/api/jobs", json={"config": "[job]"})["id"]
    sft = made("/api/learning/jobs", json={"model": "Qwen/Qwen3-0.6B", "training_file_id": "file_1"})["job_id"]
    file = made("/api/files", files={"file": ("a.jsonl", b'{"messages": []}\n')})["id"]
    jobs = [native, sft]
    return {
        "job_id": jobs,
        "file_id": [file],
        "key_id": [made("/api/keys", json={})["id"]],
        "org_id": [made("/api/organisations", json={"name": "other"})["id"]],
        "model_id": ["Qwen/Qwen3-0.6B", f"fft:Qwen/Qwen3-0.6B:{sft}"],
        "after": [*jobs, file, "0"],
        "since": ["evt_1", "1", "2026-01-01"],
    }


_asked = 0


@pytest.mark.parametrize(
    "mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["as-it-says", "as-it-forbids"]
)
@pytest.mark.parametrize("operation", _OPERATIONS)
def test_an_answer_is_never_our_fault(backend: Backend, operation: str, mode: GenerationMode):
    if mode is GenerationMode.NEGATIVE and operation in _NEVER_WRONG:
        pytest.skip("nothing can be wrong with it")

    @given(_OPERATIONS[operation].as_strategy(generation_mode=mode), st.data())
    @settings(
        max_examples=_EACH,
        # A request that fails is short enough as it is, and shrinking it takes minutes.
        phases=[Phase.explicit, Phase.generate],
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    def ask(case: schemathesis.Case, data: st.DataObject) -> None:
        global _asked
        _asked += 1
        if data.draw(st.booleans(), label="of what is there"):
            for given_by in (case.path_parameters, case.query):
                for name in set(given_by or ()) & set(backend.there):
                    given_by[name] = data.draw(st.sampled_from(backend.there[name]), label=name)
        for name in ("Authorization", *_FRAMING):
            case.headers.pop(name, None)
        backend.ask(case.as_transport_kwargs(base_url=backend.url))

    ask()


@pytest.mark.parametrize(("operation", "parameter"), _NUMBERS)
def test_a_number_that_nothing_can_hold_is_not_our_fault_either(backend: Backend, operation: str, parameter: str):
    method, path = operation.split()
    for name, known in backend.there.items():
        path = path.replace(f"{{{name}}}", known[0])
    for extreme in (2**63, -(2**63) - 1, 10**30):
        backend.ask({"method": method, "url": backend.url + path, "params": {parameter: extreme}})


def test_that_many_requests_were_made():
    assert _asked >= CASES
