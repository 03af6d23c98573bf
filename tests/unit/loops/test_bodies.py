"""The gaps of the event loops of inference and gateway while they read request bodies of the largest size."""

from __future__ import annotations

from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from synth.errors import Problem, UserError
from synth.gateway.api.native.inference import _route_of
from synth.ids import OrgId
from synth.inference.api.app import build_api
from synth.runtime.json_values import check_json_values, count_values
from synth.runtime.off_loop import OffLoop
from tests.keyrings import internal
from tests.loop_gaps import LoopGaps, RecordProperty

_SIZE = 32 << 20
NOTHING: Any = None


def _chat(content: bytes) -> bytes:
    return b'{"model":"m","messages":[{"role":"user","content":' + content + b'}],"user":"u"}'


#: Chats of 32 MiB, and whether they have few enough values.
CHATS: dict[str, tuple[bytes, bool]] = {
    "a text": (_chat(b'"' + b"Where, when: how? " * (_SIZE // 18 - 10) + b'"'), True),
    "a text of escapes": (_chat(b'"' + b"\\n" * (_SIZE // 2 - 100) + b'"'), False),
    "spaces": (_chat(b" " * (_SIZE // 2) + b'"x"'), True),
    "empty objects": (_chat(b"[" + b"{}," * (_SIZE // 3 - 100) + b"{}]"), False),
    "long numbers": (_chat(b"[" + (b"9" * 4000 + b",") * (_SIZE // 4001 - 1) + b"1]"), False),
}


class _NoModels:
    @asynccontextmanager
    async def for_model(self, model: str, principal: str):
        raise UserError(Problem(what=f"no model {model}", where="model"))
        yield


async def _authenticate(_: Request) -> str:
    return "org_1"


@pytest.mark.parametrize("case", CHATS)
async def test_a_large_chat_at_the_inference_service(case: str, record_property: RecordProperty):
    body, accepted = CHATS[case]
    router: Any = _NoModels()
    api = build_api(router, NOTHING, _authenticate, internal=internal(), images=NOTHING, off_loop=OffLoop())
    async with (
        httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://test") as client,
        LoopGaps() as gaps,
    ):
        reply = await client.post("/v1/chat/completions", content=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == ((404, "model") if accepted else (400, "body"))
    gaps.check(record_property, "inference", case)


@pytest.mark.parametrize("case", CHATS)
async def test_the_route_of_a_large_chat_at_the_gateway(case: str, record_property: RecordProperty):
    gateway: Any = SimpleNamespace(service=SimpleNamespace(off_loop=OffLoop()))
    async with LoopGaps() as gaps:
        assert (await _route_of(gateway, CHATS[case][0], OrgId("org_1"))).model == "m"
    gaps.check(record_property, "gateway", case)


@pytest.mark.parametrize(
    ("body", "values"),
    [
        (b'"a,b:[{"', 1),
        (b'["a","b",{"c":[1,2]}]', 8),
        (b'"' + b"\\n" * 80 + b'"', 11),
        (b'"an end that is missing, ["', 1),
        (b'"\\', 1),
        (b"[" + b"1" * 4000 + b"]", 802),
        (b'["' + b"1" * 4000 + b'"]', 2),
        (b'"' + b'\\"' * (1 << 20), 1 + (1 << 17)),
        (b'"' * (1 << 20), 1),
        (b"\xff\xfe", 1),
    ],
)
def test_values_are_counted_outside_strings(body: bytes, values: int):
    assert count_values(body) == values


async def test_a_body_of_exactly_the_limit_is_accepted():
    body = b"[" + b"1," * 40_000 + b'"' + b"," * 40_000 + b'"]'
    limit = count_values(body)
    assert limit == 40_002
    await check_json_values(body, OffLoop(), limit=limit, setting="SYNTH_X", org="o")
    with pytest.raises(UserError, match=r"40,002 JSON values .* at most 40,001 \(SYNTH_X\)"):
        await check_json_values(body, OffLoop(), limit=limit - 1, setting="SYNTH_X", org="o")
