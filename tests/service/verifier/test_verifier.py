"""The verifier service: a validated job's world is looked at, and its first tasks become due."""

from __future__ import annotations

import asyncio
import shutil
from typing import Any

import msgspec
import pytest

from synth.bus.connection import Connection
from synth.bus.history.job_log import append_decided, read_job, start_attempt
from synth.bus.history.model_refs import find_model
from synth.bus.kv.secrets import SecretStore
from synth.bus.publish import Fence, Publisher
from synth.bus.replay import replay
from synth.errors import UserError
from synth.events import (
    BlobRef,
    FileDeleted,
    FileReady,
    FileUploaded,
    JobCreated,
    JobPaused,
    JobPauseRequested,
    JobRefused,
    JobResumed,
    JobStarted,
    JobValidated,
    JobVerified,
    JobWithdrawn,
    ModelPublished,
    ModelRef,
)
from synth.fairness.slots import FairSlots
from synth.ids import new_job_id, new_org_id
from synth.jobs.lifecycle import State
from synth.models import Registry
from synth.outbound.answer_memory import AnswerMemory
from synth.runtime.off_loop import OffLoop
from synth.validator.validate import validate
from synth.verifier.rendering import Rendering
from synth.work import Task
from tests.keyrings import secrets_of
from tests.service.jobs import RL, SFT, create, make_model_dir, upload, wait_for
from tests.service.process import running
from tests.service.verifier.task_apps import good, opened_by, plays, scripted

EVAL = """
[eval]
model = "tiny-qwen3"
seeds = "0-9"
task_app_url = "http://127.0.0.1:9"
"""
BLOB = BlobRef(uri="blob://x", size=1, sha256="0")
ROWS = b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'


@pytest.fixture(scope="module")
def models_dir(cluster_dir):
    return make_model_dir(cluster_dir)


@pytest.fixture(scope="module")
def verifier(settings_of, bus_admin, models_dir, tmp_path_factory):
    log = tmp_path_factory.mktemp("verifier") / "log"
    settings = settings_of("verifier")
    limits: dict[str, Any] = {"SYNTH_RETRY_FOR_S": "0.3", "SYNTH_CALL_DEADLINE_S": "2", "SYNTH_JOBS_AT_ONCE": "1"}
    with running("verifier", settings, log, SYNTH_ALLOW_LOOPBACK="1", **limits) as process:
        yield process


async def validated(bus_as, models_dir, config: str, *, org: str = "", **overrides) -> tuple[str, str]:
    """A job that the validator has let pass."""
    org, job = org or new_org_id(), new_job_id()
    created = JobCreated(config=config, config_name="job.toml", body_sha256="0", **overrides)
    verdict = validate(created, Registry(models_dir))
    assert isinstance(verdict, JobValidated), verdict
    await create(await bus_as("gateway"), org, job, config, **overrides)
    await append_decided(await bus_as("validator"), org, job, lambda _: verdict)
    return org, job


async def outcome(bus: Connection, org: str, job: str) -> JobVerified | JobRefused:
    found = await wait_for(bus, f"job.*.{org}.{job}", "job.verified", "job.refused")
    assert isinstance(found.event, JobVerified | JobRefused)
    return found.event


async def tasks_of(bus: Connection, org: str) -> list[tuple[str, int | None]]:
    """The organisation's tasks in the queue, in order."""
    info = await bus.js.stream_info("WORK", subjects_filter=f"work.*.*.{org}.>")
    found = [await bus.js.get_last_msg("WORK", subject) for subject in info.state.subjects or {}]
    tasks = [msgspec.json.decode(m.data or b"", type=Task) for m in sorted(found, key=lambda m: m.seq or 0)]
    return [(t.kind, t.index) for t in tasks]


async def queued(bus: Connection, org: str, count: int) -> list[tuple[str, int | None]]:
    """The organisation's tasks, once there are `count`: they follow the fact within moments."""
    async with asyncio.timeout(10):
        while len(found := await tasks_of(bus, org)) < count:
            continue
    return found


def handlers_of(bus: Connection, blobs: Any, registry: Registry, client: Any, settings: Any) -> Any:
    """Return the handlers of one more verifier."""
    from synth.verifier.handlers import VerifierHandlers

    rendering = Rendering(blobs, registry, settings, FairSlots(1))
    secrets, answers = SecretStore(bus, secrets_of("gateway")), AnswerMemory(1 << 30, wait_s=5)
    return VerifierHandlers(bus, secrets, registry, client, settings, asyncio.Event(), OffLoop(), answers, rendering)


async def test_an_rl_job_gets_its_collector_and_its_engine(verifier, bus_as, models_dir):
    gateway = await bus_as("gateway")
    org = new_org_id()
    secrets = SecretStore(gateway, secrets_of("gateway"))
    async with scripted(opened_by("env_right")) as app:
        key_id = (await secrets.add_environment_key(org, "env_right", origin=app.url)).id
        await secrets.add_environment_key(org, "env_wrong", origin=app.url)
        org, job = await validated(bus_as, models_dir, RL, org=org, task_url=app.url)
        found = await outcome(gateway, org, job)
    assert found == JobVerified(
        source=ModelRef(id="tiny-qwen3", path=str(models_dir / "tiny-qwen3")),
        task_url=app.url,
        task_key_id=key_id,
        task_name="math",
    )
    assert await queued(await bus_as("bus"), org, 2) == [("collect", None), ("serve", 0)]


async def test_an_evaluation_gets_the_collector_that_starts_it_last(verifier, bus_as, models_dir):
    async with scripted(good) as app:
        org, job = await validated(bus_as, models_dir, EVAL, task_url=app.url)
        assert isinstance(await outcome(await bus_as("gateway"), org, job), JobVerified)
    assert await queued(await bus_as("bus"), org, 2) == [("serve", 0), ("collect", None)]


async def test_every_problem_of_the_jobs_world_is_told_at_once(verifier, bus_as, models_dir):
    config = RL.replace('base = "tiny-qwen3"', 'source = "rl:tiny-qwen3:job_nothere"')
    async with scripted(lambda call: (200, b"garbage")) as app:
        org, job = await validated(bus_as, models_dir, config, task_url=app.url)
        found = await outcome(await bus_as("gateway"), org, job)
    assert isinstance(found, JobRefused)
    assert [p.where for p in found.problems] == ["model", app.url]
    assert await tasks_of(await bus_as("bus"), org) == []


@pytest.mark.parametrize(
    ("config", "place"),
    [
        (RL, "job.toml:11 [rollout].env_name"),
        (EVAL + 'env_name = "math"\n', "job.toml:6 [eval].env_name"),
        (EVAL + 'app_id = "math"\n', "job.toml:6 [eval].app_id"),
    ],
)
async def test_a_job_on_an_environment_that_its_app_does_not_play_is_refused(
    verifier, bus_as, models_dir, config: str, place: str
):
    gateway = await bus_as("gateway")
    async with scripted(plays("guess", "guess-hard")) as app:
        org, job = await validated(bus_as, models_dir, config, task_url=app.url)
        found = await outcome(gateway, org, job)
    async with scripted(plays("guess", "math")) as app:
        right = await validated(bus_as, models_dir, config, task_url=app.url)
        assert isinstance(await outcome(gateway, *right), JobVerified)
    assert isinstance(found, JobRefused)
    [problem] = found.problems
    assert (problem.where, problem.expected) == (place, "'guess', 'guess-hard'")
    assert problem.what.startswith("'math' is not an environment of the task app")
    assert await tasks_of(await bus_as("bus"), org) == []


async def test_a_job_that_cannot_be_looked_at_is_refused_with_its_dead_letter(verifier, bus_as):
    org, job = new_org_id(), new_job_id()
    gateway = await bus_as("gateway")
    await create(gateway, org, job, RL)
    strange = JobValidated(job={"kind": "of another version"}, origins={}, warnings=[])
    await append_decided(await bus_as("validator"), org, job, lambda _: strange)
    found = await outcome(gateway, org, job)
    assert isinstance(found, JobRefused)
    [problem] = found.problems
    assert "was validated by another version" in problem.what
    assert problem.where.startswith("verifier, dead letter ")


async def test_an_sft_job_waits_for_its_file_and_goes_to_the_trainer(verifier, bus_as, blobs, models_dir):
    org, gateway = new_org_id(), await bus_as("gateway")
    file = await upload(gateway, blobs, org, ROWS)
    org, job = await validated(bus_as, models_dir, SFT, org=org, training_file=file)
    # Other jobs show that it waits without holding up the rest, although one place is all that there is.
    await validated(bus_as, models_dir, SFT, org=org, training_file=file)
    async with scripted(good) as app:
        other = await validated(bus_as, models_dir, EVAL, task_url=app.url)
        await outcome(gateway, *other)
    assert (await read_job(gateway, org, job)).state is State.VALIDATED
    ready = FileReady(rows=1, messages=2, characters=3)
    await Publisher(await bus_as("files")).once(ready, org=org, key=file, id="verdict")
    found = await outcome(gateway, org, job)
    assert isinstance(found, JobVerified)
    assert found.training_data is not None
    assert await blobs.get_bytes(found.training_data) == ROWS
    assert await queued(await bus_as("bus"), org, 2) == [("train", None), ("train", None)]


async def test_an_sft_job_that_waited_too_long_for_its_file_is_refused(bus_as, settings_of, blobs, models_dir):
    """As a second verifier finds it, long after the first one began to wait."""
    from synth.outbound.http_guard import guarded_client
    from synth.verifier.settings import VerifierSettings

    org, gateway, bus = new_org_id(), await bus_as("gateway"), await bus_as("verifier")
    file = await upload(gateway, blobs, org, b"rows")
    org, job = await validated(bus_as, models_dir, SFT, org=org, training_file=file)
    settings = VerifierSettings(file_wait_s=0.0)
    async with guarded_client(settings.guard) as client:
        handlers = handlers_of(bus, blobs, Registry(models_dir), client, settings)
        event = (await read_job(bus, org, job)).facts[1]
        assert isinstance(event.event, JobValidated)
        await handlers.job_validated(event, event.event)
    found = await outcome(gateway, org, job)
    assert isinstance(found, JobRefused)
    assert "has not been checked in time" in found.problems[0].what


@pytest.mark.parametrize(
    ("method", "holds", "reason"),
    [
        ("sft", {"images": 1200, "rewritten": BLOB}, "'train.jsonl' shows images, and tiny-qwen3 sees none"),
        ("sft", {"pairs": 1}, "'train.jsonl' holds preference pairs, and this is a supervised job"),
        ("dpo", {}, "'train.jsonl' holds conversations, and DPO trains on preference pairs"),
    ],
)
async def test_a_file_that_the_job_cannot_train_on_is_refused(
    verifier, bus_as, blobs, models_dir, method, holds, reason
):
    org, gateway = new_org_id(), await bus_as("gateway")
    file = await upload(gateway, blobs, org, b"rows")
    ready = FileReady(rows=1, messages=2, characters=3, **holds)
    await Publisher(await bus_as("files")).once(ready, org=org, key=file, id="verdict")
    config = SFT.replace('"sft"', f'"{method}"')
    found = await outcome(gateway, *await validated(bus_as, models_dir, config, org=org, training_file=file))
    assert isinstance(found, JobRefused)
    assert found.problems[0].what == reason


async def test_a_job_on_a_rejected_file_is_refused_with_the_files_lines(verifier, bus_as, models_dir):
    from synth.events import FileRejected, LineProblem

    org, gateway = new_org_id(), await bus_as("gateway")
    await Publisher(gateway).once(
        FileUploaded(name="my.jsonl", purpose="fine-tune", blob=BLOB), org=org, key="file_9", id="1"
    )
    lines = [LineProblem(line=37, path="$.messages[0].role", reason="Invalid enum value 'bot'")]
    await Publisher(await bus_as("files")).once(
        FileRejected(bad_lines=3, problems=lines), org=org, key="file_9", id="verdict"
    )
    org, job = await validated(bus_as, models_dir, SFT, org=org, training_file="file_9")
    found = await outcome(gateway, org, job)
    assert isinstance(found, JobRefused)
    assert "'my.jsonl' has 3 bad lines" in found.problems[0].what
    assert found.problems[1].text() == "my.jsonl:37 $.messages[0].role: Invalid enum value 'bot'"


async def test_a_job_whose_model_cannot_render_a_row_is_refused_with_its_line(verifier, bus_as, blobs, models_dir):
    org, gateway = new_org_id(), await bus_as("gateway")
    system = ROWS.replace(b'[{"role": "user"', b'[{"role": "system", "content": "s"}, {"role": "user"')
    first = b'{"messages": [{"role": "assistant", "content": "b"}, {"role": "user", "content": "a"}]}\n'
    for n, (body, line) in enumerate([(ROWS + system, 2), (first, 1)]):
        file = await upload(gateway, blobs, org, body)
        ready = FileReady(rows=2, messages=5, characters=3)
        await Publisher(await bus_as("files")).once(ready, org=org, key=file, id=f"verdict{n}")
        found = await outcome(gateway, *await validated(bus_as, models_dir, SFT, org=org, training_file=file))
        assert isinstance(found, JobRefused)
        assert "'train.jsonl' has rows that tiny-qwen3 cannot be trained on" in found.problems[0].what
        assert [problem.where for problem in found.problems[1:]] == [f"train.jsonl:{line} $.messages"]


async def test_a_job_on_a_file_that_does_not_exist_is_refused_with_the_nearest(verifier, bus_as, blobs, models_dir):
    org, gateway = new_org_id(), await bus_as("gateway")
    file = await upload(gateway, blobs, org, b"rows")
    org, job = await validated(bus_as, models_dir, SFT, org=org, training_file=file[:-1])
    found = await outcome(gateway, org, job)
    assert isinstance(found, JobRefused)
    assert file[:-1] in found.problems[0].what
    assert found.problems[0].fix == f"did you mean {file!r}?"


async def test_a_job_that_was_withdrawn_meanwhile_gets_no_tasks(verifier, bus_as, blobs, models_dir):
    org, gateway = new_org_id(), await bus_as("gateway")
    file = await upload(gateway, blobs, org, b"rows")
    org, job = await validated(bus_as, models_dir, SFT, org=org, training_file=file)
    await append_decided(gateway, org, job, lambda _: JobWithdrawn())
    ready = FileReady(rows=1, messages=2, characters=3)
    await Publisher(await bus_as("files")).once(ready, org=org, key=file, id="verdict")
    async with scripted(good) as app:
        later = await validated(bus_as, models_dir, EVAL, task_url=app.url)
        await outcome(gateway, *later)
    history = await read_job(gateway, org, job)
    assert history.state is State.CANCELLED
    assert await tasks_of(await bus_as("bus"), org) == []


@pytest.mark.parametrize("started", [False, True])
async def test_a_redelivery_queues_what_a_dead_verifier_did_not(bus_as, blobs, models_dir, started):
    """The verifier before us appended its fact and died; no service runs here, the handler is called as it is."""
    from synth.outbound.http_guard import guarded_client
    from synth.verifier.settings import VerifierSettings

    org, job = await validated(bus_as, models_dir, EVAL, task_url="http://127.0.0.1:9")
    bus = await bus_as("verifier")
    await append_decided(bus, org, job, lambda _: JobVerified(source=ModelRef(id="tiny-qwen3")))
    if started:
        await start_attempt(await bus_as("rollouts"), org, job, worker="w")
    before = await read_job(bus, org, job)
    settings, registry = VerifierSettings(), Registry(models_dir)
    async with guarded_client(settings.guard) as client:
        handlers = handlers_of(bus, blobs, registry, client, settings)
        event = before.facts[1]
        assert isinstance(event.event, JobValidated)
        for _ in range(2):
            await handlers.job_validated(event, event.event)
    assert await queued(await bus_as("bus"), org, 2) == [("serve", 0), ("collect", None)]
    assert (await read_job(bus, org, job)).last_seq == before.last_seq


async def test_a_resumed_job_gets_its_tasks_anew_though_those_before_are_not_acknowledged(
    verifier, bus_as, settings_of, models_dir
):
    async with scripted(good) as app:
        org, job = await validated(bus_as, models_dir, EVAL, task_url=app.url)
        gateway, owner = await bus_as("gateway"), await bus_as("rollouts")
        await outcome(gateway, org, job)
        assert await queued(await bus_as("bus"), org, 2) == [("serve", 0), ("collect", None)]
        await start_attempt(owner, org, job, worker="w")
        await append_decided(gateway, org, job, lambda _: JobPauseRequested())
        await append_decided(owner, org, job, lambda _: JobPaused(step=0))
        await append_decided(gateway, org, job, lambda _: JobResumed())
        assert await queued(await bus_as("bus"), org, 4) == [("serve", 0), ("collect", None)] * 2


async def published(bus_as, org: str, model: ModelRef) -> None:
    """A model in the log, of a job that only its owner has told of: whoever verifies jobs has nothing to do with it."""
    trainer, job = Publisher(await bus_as("trainer")), model.id.split(":")[2]
    seq = await trainer.lifecycle(JobStarted(attempt=1, worker="w"), org=org, key=job, id="1", after=0)
    fence = Fence(org=org, job_id=job, attempt=1, seq=seq)
    await trainer.fenced(ModelPublished(model=model, kind="full", step=3), fence=fence, id="1")


async def test_a_fine_tuned_source_is_the_model_that_its_job_published(bus_as, models_dir):
    org, bus = new_org_id(), await bus_as("verifier")
    model = ModelRef(id="fft:tiny-qwen3:job_a1", tree=BLOB)
    await published(bus_as, org, model)
    registry = Registry(models_dir)
    assert await find_model(bus, org, "fft:tiny-qwen3:job_a1", registry) == model
    assert await find_model(bus, org, "ft:tiny-qwen3:job_a1", registry) == model
    for wrong in ("rl:tiny-qwen3:job_a1", "fft:tiny-qwen3:job_a2", "fft:tiny-qwen3:job_a1:step_9"):
        with pytest.raises(UserError, match="did you mean 'fft:tiny-qwen3:job_a1'"):
            await find_model(bus, org, wrong, registry)
    with pytest.raises(UserError, match="has not been published"):
        await find_model(bus, new_org_id(), "fft:tiny-qwen3:job_a1", registry)


async def test_a_base_without_local_weights_is_refused_unless_there_is_a_hub(bus_as, models_dir):
    bus = await bus_as("verifier")
    with pytest.raises(UserError, match="has no weights on this cluster"):
        await find_model(bus, "org_x", "qwen/qwen3-0.6b", Registry(models_dir))
    found = await find_model(bus, "org_x", "qwen/qwen3-0.6b", Registry(models_dir, hub=True))
    assert found == ModelRef(id="Qwen/Qwen3-0.6B", path="Qwen/Qwen3-0.6B")


async def test_a_stand_in_is_named_in_the_reference(bus_as, models_dir, tmp_path):
    shutil.copytree(models_dir, tmp_path, dirs_exist_ok=True)
    registry = Registry(tmp_path)
    registry.alias("Qwen/Qwen3-0.6B", "tiny-qwen3")
    found = await find_model(await bus_as("verifier"), "org_x", "Qwen/Qwen3-0.6B", registry)
    assert found == ModelRef(id="Qwen/Qwen3-0.6B", path=str(tmp_path / "tiny-qwen3"), stand_in="tiny-qwen3")


async def test_no_secret_is_in_the_log(verifier, bus_as):
    events = await replay(await bus_as("gateway"), [">"])
    assert not [e for e in events if "env_right" in str(e.event)]


async def test_a_job_that_names_a_deleted_file_is_refused_with_that_reason(verifier, bus_as, blobs, models_dir):
    org, gateway = new_org_id(), await bus_as("gateway")
    file = await upload(gateway, blobs, org, b"rows")
    [uploaded] = await replay(gateway, [f"file.uploaded.{org}.{file}"])
    # One job waits for the check of the file when it is deleted, another comes afterwards.
    org, waiting = await validated(bus_as, models_dir, SFT, org=org, training_file=file)
    deleted = FileDeleted(requested_by="key_1", uploaded_seq=uploaded.seq)
    await Publisher(gateway).once(deleted, org=org, key=file, id="1")
    org, late = await validated(bus_as, models_dir, SFT, org=org, training_file=file)
    for job in (waiting, late):
        found = await outcome(gateway, org, job)
        assert isinstance(found, JobRefused)
        assert found.problems[0].what == f"the file {file!r} was deleted"
        assert "upload it again" in found.problems[0].fix
