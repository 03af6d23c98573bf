"""Files and models as the published openai SDK sees them, against a real gateway."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from synth.bus.publish import Publisher
from synth.events import FileReady, FileRejected, LineProblem, ModelPublished, ModelRef
from tests.service.gateway import job_histories
from tests.service.gateway.conftest import Client
from tests.service.gateway.openai.sdk_jobs import sdk_of
from tests.service.gateway.wait import wait_until_shown


@pytest.fixture
async def client(user: Client) -> AsyncIterator[openai.AsyncOpenAI]:
    async with sdk_of(user) as made:
        yield made


async def upload(client: openai.AsyncOpenAI, body: bytes = b"{}\n", name: str = "rows.jsonl") -> Any:
    return await client.files.create(file=(name, body), purpose="fine-tune")


async def test_a_file_is_uploaded_checked_read_and_deleted(client: openai.AsyncOpenAI, user: Client, bus_as: Any):
    body = b'{"messages": []}\n' * 9
    file = await client.files.create(file=io.BytesIO(body), purpose="fine-tune")
    assert (file.object, file.purpose, file.bytes, file.status) == ("file", "fine-tune", len(body), "uploaded")
    assert (file.expires_at, file.status_details) == (None, None)
    publisher = Publisher(await bus_as("files"))
    ready = FileReady(rows=9, messages=0, characters=0)
    await wait_until_shown(user, await publisher.once(ready, org=user.org, key=file.id, id="1"))
    assert (await client.files.wait_for_processing(file.id)).status == "processed"
    assert (await client.files.content(file.id)).content == body
    deleted = await client.files.delete(file.id)
    assert (deleted.id, deleted.deleted) == (file.id, True)
    with pytest.raises(openai.NotFoundError):
        await client.files.retrieve(file.id)
    assert [f async for f in client.files.list()] == []


async def test_a_file_with_wrong_lines_says_which(client: openai.AsyncOpenAI, user: Client, bus_as: Any):
    file = await upload(client)
    problem = LineProblem(line=3, path="$.messages", reason="not a list")
    publisher = Publisher(await bus_as("files"))
    wrong = FileRejected(bad_lines=2, problems=[problem])
    await wait_until_shown(user, await publisher.once(wrong, org=user.org, key=file.id, id="1"))
    shown = await client.files.retrieve(file.id)
    assert (shown.status, shown.status_details) == ("error", "2 bad lines: line 3 $.messages: not a list")


async def test_files_are_listed_in_either_order(client: openai.AsyncOpenAI):
    made = [(await upload(client, b"%d" % i)).id for i in range(5)]
    assert [f.id async for f in client.files.list(limit=2)] == made[::-1]
    assert [f.id async for f in client.files.list(limit=2, order="asc", purpose="fine-tune")] == made
    assert [f.id async for f in client.files.list(purpose="batch")] == []


async def test_what_a_file_cannot_be_is_refused(client: openai.AsyncOpenAI):
    with pytest.raises(openai.BadRequestError, match="the purpose is 'batch'") as refused:
        await client.files.create(file=("a", b"x"), purpose="batch")
    assert refused.value.param == "purpose"
    with pytest.raises(openai.BadRequestError, match="do not expire"):
        await client.files.create(
            file=("a", b"x"), purpose="fine-tune", expires_after={"anchor": "created_at", "seconds": 3600}
        )
    with pytest.raises(openai.BadRequestError, match="is empty"):
        await upload(client, b"")
    assert [f async for f in client.files.list()] == []


async def test_models_are_listed_and_found_by_ids_with_slashes_and_colons(
    client: openai.AsyncOpenAI, user: Client, bus_as: Any
):
    job = (await user.submit())["id"]
    trainer, fence = await job_histories.begin(bus_as, user.org, job)
    id = f"rl:Qwen/Qwen3-0.6B:{job}"
    published = ModelPublished(model=ModelRef(id=id), kind="full", step=2)
    await wait_until_shown(user, await Publisher(trainer).fenced(published, fence=fence, id="m"))
    assert id in [model.id async for model in client.models.list()]
    model = await client.models.retrieve(id)
    assert (model.id, model.object, model.owned_by) == (id, "model", user.org)
    assert model.created > 0
    with pytest.raises(openai.ConflictError, match="a model of a job that has ended"):
        await client.models.delete(id)
    for unknown in ("gpt-9", f"{id}:step_1"):
        with pytest.raises(openai.NotFoundError) as missing:
            await client.models.retrieve(unknown)
        assert missing.value.code == "model_not_found"


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_a_long_list_of_files_is_read_in_pieces(client: openai.AsyncOpenAI, monkeypatch: Any, order: Any):
    monkeypatch.setattr("synth.gateway.api.openai.files._ROWS", 3)
    made = [(await upload(client, b'{"a": %d}\n' % i)).id for i in range(7)]
    ids = made if order == "asc" else made[::-1]
    for limit in (1, 3, 6, 7, 8):
        page = await client.files.list(limit=limit, order=order)
        assert ([file.id for file in page.data], page.has_more) == (ids[:limit], limit < 7)
    after = await client.files.list(limit=4, order=order, after=ids[1])
    assert [file.id for file in after.data] == ids[2:6]
