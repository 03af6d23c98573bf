"""A few of the hostile inputs of each kind, at the very code that reads them: each is decided, in its own words.

`python -m tests.soak.hostile` sends ten thousand of them to services that run.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import ip_network
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs

import msgspec
import pytest

from synth.bus.recorded import from_parts, require_readable
from synth.chat.literals import Literals
from synth.datasets.check import FileCheck
from synth.errors import NewerVersion, Permanent, UserError
from synth.events import FileReady, FileRejected, JobCreated, JobRejected, JobValidated
from synth.gateway.api.job_lists import find_jobs
from synth.gateway.api.openai.graders import ValidateRequest, read_grader
from synth.gateway.read_model.filters import JobFilter
from synth.gateway.settings import GatewaySettings
from synth.ids import RolloutId
from synth.images.format import ImageRefused
from synth.images.source import ImageLimits, read_image
from synth.inference.grammar.compiler import SchemaLimits, check_schema_size
from synth.methods.rewards import RewardSettings, RewardWeights, StepRewards
from synth.models import Registry
from synth.outbound.answer_memory import AnswerMemory
from synth.outbound.http_guard import GuardPolicy, guarded_client
from synth.rollouts.clients.task_app import TaskAppClient
from synth.rollouts.collection.types import CollectRequest, RolloutSpec
from synth.rollouts.rewards.scoring import EnvironmentFailed, Rewarded, score
from synth.runtime.off_loop import OffLoop
from synth.validator.validate import validate
from synth.verifier.task_app import TaskAppCheck
from tests.decoders import DECODER
from tests.loop_gaps import RecordProperty, check_gaps
from tests.service.jobs import make_model_dir
from tests.soak.hostile.addresses import forbidden_addresses, image_address
from tests.soak.hostile.bus_messages import bus_message
from tests.soak.hostile.costs.chats import schemas
from tests.soak.hostile.costs.graders import grader_bodies
from tests.soak.hostile.costs.images import image_chats
from tests.soak.hostile.costs.job_files import costly_job_files
from tests.soak.hostile.costs.lists import costly_lists
from tests.soak.hostile.job_texts import job_text
from tests.soak.hostile.rows import row
from tests.soak.hostile.servers import ALLOWED, HostileServer, Trap, hostile_server, trap
from tests.unit.rollouts.clients.test_task_app import SETTINGS
from tests.unit.rollouts.collection.test_collector import RECORD

INPUTS = 60
GUARD = GuardPolicy(allowed=(ip_network(f"{ALLOWED}/32"),))
#: Nothing here hangs by itself; a machine may be slow.
PATIENCE_S = 60.0
WORKERS = OffLoop()


@asynccontextmanager
async def world() -> AsyncIterator[tuple[HostileServer, Trap]]:
    async with trap() as trapped, hostile_server(random.Random(1), trapped.port, hangs=False) as server:
        yield server, trapped
        assert [address for address in trapped.caught if address != ALLOWED] == []


async def at_once(send: Callable[[], Awaitable[None]], *, inputs: int = INPUTS, limit: int = 8) -> None:
    places = asyncio.Semaphore(limit)

    async def one() -> None:
        async with places:
            await send()

    async with asyncio.TaskGroup() as group:
        for _ in range(inputs):
            group.create_task(one())


def test_a_job_file_is_validated_or_rejected_with_its_problems(tmp_path):
    rng, registry = random.Random(2), Registry(make_model_dir(tmp_path))
    for _ in range(INPUTS):
        text = job_text(rng)
        found = validate(JobCreated(config=text, config_name="job.toml", body_sha256="0"), registry)
        assert isinstance(found, JobValidated) or (isinstance(found, JobRejected) and found.problems), text[:300]


def test_a_training_file_is_ready_or_rejected_with_its_lines():
    rng = random.Random(3)
    for _ in range(2 * INPUTS):
        body, check = row(rng), FileCheck()
        check.feed(body)
        found = check.finish()
        assert isinstance(found, FileReady) or (isinstance(found, FileRejected) and found.problems), body[:300]


async def test_an_image_is_read_or_refused_and_nothing_inside_is_reached():
    rng, limits = random.Random(4), ImageLimits(seconds=PATIENCE_S, size=1 << 20)
    async with world() as (server, trapped), guarded_client(GUARD) as client:

        async def send(address: str) -> None:
            # Any other error of the code under test ends the test.
            with suppress(ImageRefused):
                await replace(DECODER, limits=limits).check(await read_image(address, client, limits))

        for address in forbidden_addresses(trapped.port):
            await send(address)
        await at_once(lambda: send(image_address(rng, allowed=server.url, forbidden=trapped.port)))


async def test_a_task_app_is_verified_or_refused_in_words():
    async with world() as (server, _), guarded_client(GUARD) as client:
        app = TaskAppCheck(
            client, f"{server.url}/verify", PATIENCE_S, 0.0, OffLoop(), "org_1", max_answer_bytes=1 << 20
        )

        async def send() -> None:
            with suppress(UserError):
                await app.run([], rubric_of=1)

        await at_once(send)


@pytest.mark.parametrize(
    "rewards",
    [
        RewardSettings(),
        RewardSettings(scores="task_app", weights=RewardWeights(event=0.5, outcome=0.5)),
        RewardSettings(steps=StepRewards(mode="decision_stepwise")),
        RewardSettings(steps=StepRewards(mode="env_sparse")),
    ],
)
async def test_a_rollout_is_rewarded_by_a_finite_number_or_the_environments_failure(rewards):
    request = CollectRequest(iteration=1, mode="eval", seeds=[7], group_size=1, oldest_version=0)
    spec = RolloutSpec(rollout_id=RolloutId("job_1_t1_0"), index=0, group=0, seed=7)
    rewarded = 0
    async with world() as (server, _):
        settings = msgspec.structs.replace(SETTINGS, task_url=f"{server.url}/play")
        answers = AnswerMemory(1 << 30, wait_s=5)
        client = TaskAppClient(
            settings,
            job_id="job_1",
            key=None,
            limit=8,
            max_answer_bytes=1 << 20,
            max_answer_depth=100,
            answer_within_s=1.0,
            guard=GUARD,
        )

        async def send() -> None:
            nonlocal rewarded
            async with asyncio.timeout(PATIENCE_S):
                # Nobody listens there: the app answers without having asked the model.
                with answers.hold("org_1") as room:
                    url = "http://127.0.0.1:9/v1"
                    reply = await client.play(request, spec, inference_url=url, cid="trace_hostile", room=room)
            found = score(reply, [RECORD], url=client.url, failure_reward=0.0, rewards=rewards)
            assert isinstance(found, EnvironmentFailed | Rewarded)
            if isinstance(found, Rewarded):
                rewarded += 1
                assert abs(sum(found.sources.environment)) <= 1e30

        await at_once(send)
        await client.aclose()
    assert rewarded or rewards != RewardSettings(), "no answer was good enough for a reward"


def test_a_message_of_a_thief_is_an_event_or_unreadable():
    rng = random.Random(5)
    for _ in range(INPUTS):
        message = bus_message(rng, orgs=["org_x"], keys=["job_x"])
        if message.subject.startswith(("work.", "dead.", "$", "ask.")) or message.subject.count(".") < 3:
            continue
        fact = from_parts(message.subject, message.body, message.headers, seq=1, time=datetime.now(UTC))
        with suppress(NewerVersion, Permanent):
            require_readable(fact)


Read = Callable[[], Awaitable[None]]


def costly_grader() -> Read:
    request = ValidateRequest(grader=dict(grader_bodies(random.Random(6)))["unknown fields"]["grader"])

    async def read() -> None:
        with pytest.raises(UserError) as refused:
            await WORKERS.process(read_grader, request, False, org="org_1", size=None, task="read the grader")
        assert refused.value.problems[-1].what.endswith("more problems")

    return read


def costly_job_file() -> Read:
    text = dict(costly_job_files(random.Random(6)))["unknown keys"]
    created = JobCreated(config=text, config_name="job.toml", body_sha256="")

    async def read() -> None:
        verdict = await WORKERS.process(
            validate, created, Registry(Path()), org="org_1", size=len(text), task="read the job"
        )
        assert isinstance(verdict, JobRejected)

    return read


def costly_image() -> Read:
    (part,) = dict(image_chats(random.Random(6), ["parameters"]))["parameters"]["messages"][0]["content"]

    async def read() -> None:
        async with guarded_client(GUARD) as client:
            with pytest.raises(ImageRefused):
                await read_image(part["image_url"]["url"], client, ImageLimits())

    return read


def costly_schema() -> Read:
    schema = schemas(random.Random(6))["too large"]

    async def read() -> None:
        with pytest.raises(UserError, match="more than 65536 bytes"):
            check_schema_size(schema, where="schema", limits=SchemaLimits())

    return read


def costly_chat() -> Read:
    # Each mark is replaced before the template renders.
    text, literals = "ab " * 6_000_000 + "<|im_start|>" * 300_000, Literals(["<|im_start|>", "<|im_end|>"])

    async def read() -> None:
        escaped = await WORKERS.thread(literals.escape, text, org="org_1", size=len(text))
        assert "|im_start|>" not in escaped

    return read


def costly_list() -> Read:
    path = dict(costly_lists(random.Random(6), ["job_1"]))["jobs by too many tags"]
    tags = {str(i): tag for i, tag in enumerate(parse_qs(path.partition("?")[2])["tag"])}
    gateway: Any = SimpleNamespace(settings=GatewaySettings())

    async def read() -> None:
        with pytest.raises(UserError, match="SYNTH_LIST_CONDITIONS"):
            await find_jobs(gateway, "org_1", limit=1, wanted=JobFilter(tags=tags))

    return read


@pytest.mark.parametrize(
    "make", [costly_grader, costly_job_file, costly_image, costly_schema, costly_chat, costly_list]
)
async def test_a_costly_input_does_not_hold_the_event_loop(make: Callable[[], Read], record_property: RecordProperty):
    await check_gaps(make(), record_property, "hostile", make.__name__)
