"""The gaps of the event loops of inference and gateway while they read large request bodies."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from synth.datasets.check import FileCheck
from synth.errors import Problem, UserError
from synth.events import FileReady, FileRejected
from synth.gateway.api.native.inference import _route_of
from synth.ids import OrgId
from synth.inference.api.app import build_api
from synth.runtime.json_bodies import check_json_values
from synth.runtime.json_values import has_more_values
from synth.runtime.off_loop import OffLoop
from tests.keyrings import verifier_of
from tests.loop_gaps import RecordProperty, check_gaps

_SIZE = 16 << 20
NOTHING: Any = None


def _chat(content: bytes) -> bytes:
    return b'{"model":"m","messages":[{"role":"user","content":' + content + b'}],"user":"u"}'


#: Chats of 16 MiB, and whether they have few enough values.
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
    api = build_api(router, NOTHING, _authenticate, calls=verifier_of("r-1"), images=NOTHING, off_loop=OffLoop())

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 1 << 18):
            yield body[start : start + (1 << 18)]

    async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://test") as client:
        reply = await check_gaps(
            lambda: client.post("/v1/chat/completions", content=pieces()), record_property, "inference", case
        )
    assert (reply.status_code, reply.json()["error"]["param"]) == ((404, "model") if accepted else (400, "body"))


@pytest.mark.parametrize("case", CHATS)
async def test_the_route_of_a_large_chat_at_the_gateway(case: str, record_property: RecordProperty):
    gateway: Any = SimpleNamespace(service=SimpleNamespace(off_loop=OffLoop()))
    body = CHATS[case][0]
    route = await check_gaps(lambda: _route_of(gateway, body, OrgId("org_1")), record_property, "gateway", case)
    assert route.model == "m"


_WIDE = b'{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}],"item":[%s]}\n'
LINES = {
    "a line of lists": (_WIDE % (b"[]," * (_SIZE // 3) + b"0"), "has more than 400000 JSON values"),
    "a line of texts": (_WIDE % (b'"ab",' * (_SIZE // 5) + b"0"), "has more than 400000 JSON values"),
    "a line of as many values as may be": (_WIDE % (b"[]," * 199_900 + b"0"), "item"),
}


@pytest.mark.parametrize("case", LINES)
async def test_a_large_line_of_a_file(case: str, record_property: RecordProperty):
    line, reason = LINES[case]

    async def read() -> FileReady | FileRejected:
        check = FileCheck()
        await asyncio.to_thread(check.feed, line)
        return await asyncio.to_thread(check.finish)

    verdict = await check_gaps(read, record_property, "files", case)
    assert isinstance(verdict, FileRejected)
    assert reason in verdict.problems[0].reason


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
        # Longer than the pieces that are examined at one time.
        (b'"' + b'\\"' * (1 << 18), 1 + (1 << 15)),
        (b'"' * (1 << 19), 1),
        (b"\xff\xfe", 1),
    ],
    ids=itertools.count(),  # of the bytes themselves they would have a megabyte
)
def test_values_are_counted_outside_strings(body: bytes, values: int):
    assert has_more_values(body, values - 1)
    assert not has_more_values(body, values)


async def test_a_body_of_exactly_the_limit_is_accepted():
    body = b"[" + b"1," * 40_000 + b'"' + b"," * 40_000 + b'"]'
    limit = 40_002
    await check_json_values(body, OffLoop(), limit=limit, setting="SYNTH_X", org="o")
    with pytest.raises(UserError, match=r"more than 40,001 JSON values .* at most 40,001 \(SYNTH_X\)"):
        await check_json_values(body, OffLoop(), limit=limit - 1, setting="SYNTH_X", org="o")
