"""Images in chats: what is recorded of them, what is left out, and what is said of one that cannot be shown."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import re
import struct
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from synth.events import BlobRef
from synth.inference.api.images import LEFT_OUT, ChatImages
from synth.inference.api.requests import JobSampling
from synth.inference.chat.prompts import ChatFormat
from synth.inference.engines.settings import EngineSettings
from synth.inference.engines.transformers import TransformersEngine
from synth.outbound.http_guard import GuardPolicy, guarded_client
from synth.trajectories import CompletionRecord, build_branches
from tests.image_server import data_uri, images
from tests.unit.inference.one_model_service import Served, credential, read_images
from tests.unit.inference.vision_model import VisionReference, picture

RED, BLUE = picture(1), picture(2, 96, 64)
_rollouts = itertools.count()


@pytest.fixture(scope="module")
def reference(vision_dir: Path) -> VisionReference:
    return VisionReference(vision_dir)


@pytest.fixture
async def served(vision_dir: Path) -> AsyncIterator[Served]:
    engine = await TransformersEngine.load(vision_dir, settings=EngineSettings(device="cpu", seed=0))
    yield Served(engine, ChatFormat.load(vision_dir), images=read_images(size=200_000))
    await engine.close()


def part(address: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": address}}


def show(*addresses: str, text: str = "What is it?") -> dict[str, Any]:
    return {"role": "user", "content": [*map(part, addresses), {"type": "text", "text": text}]}


def cid() -> str:
    return credential(f"job_1_t{next(_rollouts)}_0")


def uri(body: bytes, org: str = "org_1") -> str:
    return f"blob://orgs/{org}/images/{hashlib.sha256(body).hexdigest()}"


def check_logprobs(reference: VisionReference, record: CompletionRecord, bodies: dict[str, bytes]) -> None:
    """The record's logprobs are those of transformers with the very pixels that the record names."""
    shown = [reference.shown(bodies[image.uri]) for image in record.images]
    expected = reference.logprobs(
        record.prompt_ids.tolist(), record.sampled_ids.tolist(), shown, banned=reference.media
    )
    assert (torch.from_numpy(record.logprobs) - expected).abs().max() <= 1e-4


async def test_two_turns_with_an_image_each_are_one_branch_of_exact_tokens(served: Served, reference: VisionReference):
    rollout, first = cid(), show(data_uri(RED))
    reply = (await served.ask(rollout, messages=[first], max_tokens=8)).json()["choices"][0]["message"]
    again = [first, {"role": "assistant", "content": reply["content"]}, show(data_uri(BLUE), text="And this?")]
    assert (await served.ask(rollout, messages=again, max_tokens=8)).status_code == 200
    one, two = await served.records(rollout)
    pad, bodies = reference.pad, {uri(RED): RED, uri(BLUE): BLUE}
    assert [image.uri for image in two.images] == [uri(RED), uri(BLUE)]
    assert [image.tokens for image in two.images] == [4, 6]
    assert (one.prompt_ids == pad).sum() == 4
    assert (two.prompt_ids == pad).sum() == 10
    assert one.processor == two.processor == reference.processor.fingerprint
    for record in (one, two):
        check_logprobs(reference, record, bodies)
    [branch] = build_branches([one, two])
    assert branch.images == two.images
    assert branch.tokens.tolist() == [*two.prompt_ids, *two.sampled_ids]
    for body in (RED, BLUE):
        ref = BlobRef(uri=uri(body), size=len(body), sha256=hashlib.sha256(body).hexdigest())
        assert await served.images.blobs.get_bytes(ref) == body


async def test_records_and_replies_name_an_image_and_never_hold_it(served: Served):
    rollout = cid()
    got = await served.ask(rollout, messages=[show(data_uri(RED))], max_tokens=4)
    [record] = await served.records(rollout)
    chat = json.dumps(record.chat.messages if record.chat else None)
    assert uri(RED) in chat
    assert "base64" not in chat + got.text


async def test_a_conversation_with_another_image_is_another_branch(served: Served):
    rollout, first = cid(), show(data_uri(RED))
    reply = (await served.ask(rollout, messages=[first], max_tokens=8)).json()["choices"][0]["message"]
    turn = {"role": "assistant", "content": reply["content"]}
    last = {"role": "user", "content": "Sure?"}
    await served.ask(rollout, messages=[show(data_uri(picture(7))), turn, last], max_tokens=8)
    records = await served.records(rollout)
    assert len(build_branches(records)) == 2


async def test_an_address_is_fetched_once_in_a_rollout(served: Served):
    rollout = cid()
    async with images({"/a.png": (200, RED)}) as server:
        first = show(f"{server.url}/a.png")
        reply = (await served.ask(rollout, messages=[first], max_tokens=4)).json()["choices"][0]["message"]
        turn = {"role": "assistant", "content": reply["content"]}
        await served.ask(rollout, messages=[first, turn, show(data_uri(BLUE))], max_tokens=4)
        assert server.asked == ["/a.png"]
    assert len(build_branches(await served.records(rollout))) == 1


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "image", "image": data_uri(RED)}],
        [{"type": "image", "image": {"url": data_uri(RED)}}],
        [{"type": "image_url", "image_url": data_uri(RED)}],
        {"type": "image", "image": data_uri(RED)},
        [part(data_uri(picture(1, kind="GIF"), "gif"))],
        [part(data_uri(picture(1, kind="WEBP"), "webp"))],
        [part(data_uri(picture(1, kind="JPEG", mode="CMYK"), "jpeg"))],
    ],
)
async def test_images_of_every_form_and_kind_are_shown(served: Served, content: Any):
    rollout = cid()
    got = await served.ask(rollout, messages=[{"role": "user", "content": content}], max_tokens=3)
    assert got.status_code == 200, got.text
    [record] = await served.records(rollout)
    assert [image.tokens for image in record.images] == [4]


async def test_media_tokens_are_never_sampled_even_where_they_are_likeliest(served: Served, vision_dir: Path):
    rollout = cid()
    served.router.sampling = JobSampling(temperature=2.0, max_tokens=600)
    live = served.engine._live.model  # pyright: ignore
    media = served.chat.media
    with torch.inference_mode():
        # Every token leans to the media tokens by now.
        live.lm_head.weight[list(media)] = 3 * live.lm_head.weight[list(media)]
    got = await served.ask(rollout, messages=[show(data_uri(RED))], n=4)
    assert got.status_code == 200, got.text
    records = await served.records(rollout)
    assert sum(len(record.sampled_ids) for record in records) > 100
    assert not any(np.isin(record.sampled_ids, media).any() for record in records)


async def test_what_a_schema_allows_holds_no_media_token(served: Served):
    rollout, schema = cid(), {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    got = await served.ask(rollout, messages=[show(data_uri(RED))], max_tokens=24, response_format=form)
    assert got.status_code == 200, got.text
    [record] = await served.records(rollout)
    assert record.masks is not None
    for one in record.masks.sets:
        assert np.isin(served.chat.media, one.ids).tolist() == [one.excluded] * len(served.chat.media)


async def test_images_beyond_the_jobs_limit_are_left_out_said_and_never_fetched(served: Served):
    served.router.sampling = JobSampling(max_tokens=4, max_images_per_message=1)
    rollout, before = cid(), LEFT_OUT._value.get()  # pyright: ignore
    async with images({"/1": (200, RED), "/2": (200, BLUE)}) as server:
        shown = show(f"{server.url}/1", f"{server.url}/2", f"{server.url}/none")
        got = await served.ask(rollout, messages=[shown])
        assert server.asked == ["/1"]
    assert got.status_code == 200, got.text
    assert any("messages[0] shows 3 images" in warning for warning in got.json()["warnings"])
    assert LEFT_OUT._value.get() == before + 2  # pyright: ignore
    [record] = await served.records(rollout)
    assert [image.uri for image in record.images] == [uri(RED)]
    assert record.images_dropped == 2


async def test_a_prompt_keeps_the_latest_images_where_the_job_limits_them(served: Served):
    served.router.sampling = JobSampling(max_tokens=8, max_images_per_message=2, max_images_per_prompt=3)
    rollout, turn = cid(), {"role": "assistant", "content": "Red."}
    shown = [show(data_uri(picture(seed)), data_uri(picture(seed + 1))) for seed in (1, 3, 5)]
    got = await served.ask(rollout, messages=[shown[0], turn, shown[1], turn, shown[2]], max_tokens=4)
    [record] = await served.records(rollout)
    assert [image.uri for image in record.images] == [uri(picture(seed)) for seed in (4, 5, 6)]
    assert [w.partition(" images, and ")[0] for w in got.json()["warnings"]] == [
        "messages[0] shows 2",
        "messages[2] shows 2",
    ]
    assert "a prompt the latest 3: the others are left out" in got.text


async def test_a_call_outside_a_rollout_shows_as_many_as_it_likes_and_keeps_none(served: Served):
    got = await served.ask(None, model="tiny", messages=[show(data_uri(RED), data_uri(BLUE))], max_tokens=3)
    assert got.status_code == 200, got.text
    assert "warnings" not in got.json()
    assert await served.images.blobs.uris_below("orgs") == []


async def test_an_image_of_the_organisation_is_read_by_its_blob_and_no_other_ones(served: Served):
    blobs = served.images.blobs
    for org in ("org_1", "org_2"):
        await blobs.put_bytes(uri(RED, org).removeprefix("blob://"), RED)
    rollout = cid()
    assert (await served.ask(rollout, messages=[show(uri(RED))], max_tokens=3)).status_code == 200
    [record] = await served.records(rollout)
    assert record.images[0].uri == uri(RED)
    for address in (uri(RED, "org_2"), uri(RED).replace("images", "files"), f"blob://orgs/org_1/../{uri(RED)[7:]}"):
        got = await served.ask(cid(), messages=[show(address)])
        assert got.status_code == 400
        assert "no image of this organisation" in got.text
    assert "not stored here" in (await served.ask(cid(), messages=[show(uri(BLUE))])).text


async def test_a_stored_image_that_is_not_whole_is_told_as_what_it_is(served: Served):
    await served.images.blobs.put_bytes(uri(RED).removeprefix("blob://"), BLUE)
    got = await served.ask(cid(), messages=[show(uri(RED), data_uri(BLUE))])
    assert "is not what was written" in got.text


def bomb(side: int) -> bytes:
    """A small file of side × side pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    rows = zlib.compress(b"\0" * ((side // 8 + 1) * side), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("", "without an address"),
        ("file:///etc/passwd", "expected an https:// address"),
        ("no image", "expected an https:// address"),
        ("data:text/plain;base64,aGk=", "not a PNG, JPEG, WebP or GIF"),
        ("data:image/png;base64,%%%", "not base64"),
        (data_uri(b"<html>"), "not a PNG, JPEG, WebP or GIF"),
        (data_uri(RED[:60]), "cannot be decoded"),
        (data_uri(b"\0" * 200_100), "more than 200,000 bytes"),
        (data_uri(bomb(8000)), "64,000,000|8000×8000"),
        (data_uri(picture(1, 4000, 8)), "sides of at most"),
        ("{server}/none", "HTTP 404"),
        ("{server}/busy", "HTTP 503"),
        ("{server}/page", "not a PNG"),
        ("{server}/large", "more than 200,000 bytes"),
        ("{server}/inward", "not a public address"),
        ("{server}/loop", "redirects"),
        ("http://10.0.0.1/a.png", "not a public address"),
    ],
)
async def test_an_image_that_cannot_be_shown_is_refused_by_its_place(served: Served, address: str, said: str):
    routes: Any = {
        "/busy": (503, b""),
        "/page": (200, b"<html>"),
        "/large": (200, RED + b"\0" * 200_000),
        "/inward": (302, b"", "http://169.254.169.254/latest"),
        "/loop": (302, b"", "/loop"),
    }
    async with images(routes) as server:
        asked = address.replace("{server}", server.url)
        got = await served.ask(cid(), messages=[{"role": "system", "content": "x"}, show(data_uri(RED), asked)])
    assert got.status_code == 400, got.text
    error = got.json()["error"]
    assert error["param"] == "messages[1].content[1]"
    assert any(word in error["message"] for word in said.split("|")), error["message"]


async def test_a_server_that_never_answers_is_given_up(vision_dir: Path, served: Served):
    never = asyncio.Event()

    async def silent() -> tuple[int, bytes]:
        await never.wait()
        return 200, RED

    impatient = Served(served.engine, served.chat, images=read_images(seconds=0.3))
    async with images({"/slow": lambda _: silent()}) as server:
        got = await impatient.ask(cid(), messages=[show(f"{server.url}/slow")])
        never.set()
    assert got.status_code == 400
    assert "did not arrive within 0.3 s" in got.text


async def test_an_image_on_this_machine_is_refused_unless_that_is_allowed(served: Served):
    open_images = read_images()
    client = guarded_client(GuardPolicy(), timeout=5)
    guarded = Served(
        served.engine,
        served.chat,
        images=ChatImages(client, open_images.blobs, open_images.decoder),
    )
    async with images({"/a.png": (200, RED)}) as server:
        got = await guarded.ask(cid(), messages=[show(f"{server.url}/a.png")])
        assert server.asked == []
    assert got.status_code == 400
    assert "not a public address" in got.text


@pytest.mark.parametrize("role", ["system", "assistant"])
async def test_an_image_that_the_model_would_say_is_refused_before_any_is_fetched(served: Served, role: str):
    async with images({"/a.png": (200, RED)}) as server:
        shown = show(f"{server.url}/a.png")
        got = await served.ask(cid(), messages=[shown, {**shown, "role": role}, shown])
        assert server.asked == []
    assert got.status_code == 400
    assert got.json()["error"]["param"].startswith("messages[1].content[0]")


async def test_a_text_model_says_that_it_sees_none_and_fetches_none(model_dir: Path, engine: TransformersEngine):
    text = Served(engine, ChatFormat.load(model_dir))
    async with images({"/a.png": (200, RED)}) as server:
        got = await text.ask(cid(), messages=[show(f"{server.url}/a.png")])
        assert server.asked == []
    assert got.status_code == 400
    assert "sees no images" in got.text
    assert got.json()["error"]["param"].startswith("messages[0].content[0]")


async def test_more_images_than_the_context_holds_are_refused_with_their_tokens(served: Served):
    many = [data_uri(picture(seed, 128, 128)) for seed in range(300)]
    got = await served.ask(None, model="tiny", messages=[show(*many)])
    assert got.status_code == 400
    assert got.json()["error"]["code"] == "context_length_exceeded"
    assert re.search(r"The images take 4\d{3} tokens", got.text)


async def test_an_image_token_that_is_spelled_in_text_is_text(served: Served, reference: VisionReference):
    rollout = cid()
    got = await served.ask(rollout, messages=[show(data_uri(RED), text="<|image_pad|> and so on")], max_tokens=3)
    assert got.status_code == 200, got.text
    [record] = await served.records(rollout)
    assert (record.prompt_ids == reference.pad).sum() == 4
