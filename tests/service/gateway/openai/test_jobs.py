"""Fine-tuning jobs as the published openai SDK drives them, against a real gateway."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from synth.bus.history.job_log import read_job
from synth.bus.publish import Publisher
from synth.errors import Problem
from synth.events import (
    BlobExpired,
    BlobRef,
    CheckpointSaved,
    Heartbeat,
    JobFailed,
    JobPaused,
    JobValidated,
    ModelRef,
)
from synth.gateway.api.openai import events as events_of_openai
from synth.models import Registry
from synth.validator.validate import validate
from tests.service.gateway import job_histories
from tests.service.gateway.conftest import Client
from tests.service.gateway.openai.sdk_jobs import APP, MODEL, Sdk, rl, sdk_of, sft


@pytest.fixture
async def sdk(user: Client, bus_as: Any) -> AsyncIterator[Sdk]:
    async with sdk_of(user) as client:
        yield Sdk(client, user, bus_as)


async def test_a_supervised_job_is_created_as_it_was_asked_for(sdk: Sdk):
    file = await sdk.file()
    method = sft(n_epochs=3, batch_size=4, learning_rate_multiplier=2)
    job = await sdk.jobs.create(
        model=MODEL, training_file=file, seed=7, suffix="sums", metadata={"who": "me"}, method=method
    )
    assert (job.object, job.status, job.model, job.training_file) == (
        "fine_tuning.job",
        "validating_files",
        MODEL,
        file,
    )
    assert (job.seed, job.metadata, job.organization_id) == (7, {"who": "me"}, sdk.user.org)
    assert (job.fine_tuned_model, job.finished_at, job.error, job.trained_tokens) == (None, None, None, None)
    assert (job.hyperparameters.n_epochs, job.hyperparameters.batch_size) == (3, 4)
    assert job.hyperparameters.learning_rate_multiplier == 2
    assert job.method.supervised.hyperparameters.to_dict() == job.hyperparameters.to_dict()
    assert job.to_dict()["user_provided_suffix"] == "sums"
    verdict = validate(await sdk.created(job.id), Registry())
    assert isinstance(verdict, JobValidated)
    assert (verdict.job["kind"], verdict.job["mode"]) == ("sft", "full")
    assert (verdict.job["epochs"], verdict.job["batch_size"], verdict.job["seed"]) == (3, 4, 7)
    assert verdict.job["lr"] == pytest.approx(2e-5)
    assert verdict.job["training_file"] == file
    later = await sdk.jobs.retrieve(job.id)
    assert later.to_dict() | {"queued_seconds": 0} == job.to_dict() | {"queued_seconds": 0}
    assert later.to_dict()["queued_seconds"] > job.to_dict()["queued_seconds"], "it still waits"


async def test_auto_is_the_platforms_default_and_a_rank_makes_an_adapter(sdk: Sdk):
    auto = await sdk.supervised(hyperparameters={"n_epochs": "auto", "learning_rate_multiplier": "auto"})
    assert (auto.hyperparameters.n_epochs, auto.hyperparameters.batch_size) == (1, 32)
    assert auto.hyperparameters.learning_rate_multiplier == 1
    adapter = await sdk.supervised(method=sft(lora_rank=4, learning_rate_multiplier=0.5))
    verdict = validate(await sdk.created(adapter.id), Registry())
    assert isinstance(verdict, JobValidated)
    assert (verdict.job["mode"], verdict.job["lora"]["r"], verdict.job["lora"]["alpha"]) == ("lora", 4, 8)
    assert verdict.job["lr"] == pytest.approx(1e-4)
    assert adapter.hyperparameters.learning_rate_multiplier == 0.5


async def test_preferences_are_trained_on_with_dpo(sdk: Sdk):
    method = {"type": "dpo", "dpo": {"hyperparameters": {"beta": 0.2, "batch_size": 4, "learning_rate_multiplier": 2}}}
    job = await sdk.supervised(method=method)
    assert job.method.type == "dpo"
    shown = job.method.dpo.hyperparameters
    assert (shown.beta, shown.batch_size, shown.learning_rate_multiplier, shown.n_epochs) == (0.2, 4, 2, 1)
    verdict = validate(await sdk.created(job.id), Registry())
    assert isinstance(verdict, JobValidated)
    assert verdict.job["dpo"] == {"beta": 0.2, "label_smoothing": 0.0}
    assert (verdict.job["mode"], verdict.job["lr"]) == ("full", pytest.approx(2e-6))
    auto = await sdk.supervised(method={"type": "dpo", "dpo": {"hyperparameters": {"beta": "auto"}}})
    assert auto.method.dpo.hyperparameters.beta == 0.1


async def test_a_reinforcement_job_learns_from_seeds_of_the_task_app(sdk: Sdk):
    method = rl(n_epochs=2, batch_size=8, compute_multiplier=0.5, eval_interval=3, eval_samples=4)
    # The grader is not one of the SDK's types, which it says only when it is told to be strict.
    client = sdk_of(sdk.user, strict=False)
    job: Any = await client.fine_tuning.jobs.create(
        model=MODEL, training_file="seeds:0-19", validation_file="seeds:100,200,300,400,500", method=method
    )
    assert (job.training_file, job.validation_file) == ("seeds:0-19", "seeds:100,200,300,400")
    assert job.method.type == "reinforcement"
    grader = job.method.reinforcement.grader
    assert (grader.type, grader.url, grader.env_name) == ("task_app", APP["url"], "math")
    assert job.method.reinforcement.hyperparameters.compute_multiplier == 0.5
    assert job.method.reinforcement.hyperparameters.n_epochs == 2
    verdict = validate(await sdk.created(job.id), Registry())
    assert isinstance(verdict, JobValidated)
    resolved = verdict.job
    assert (resolved["kind"], resolved["iterations"], resolved["batch_size"], resolved["group_size"]) == ("rl", 6, 8, 4)
    evaluation = resolved["evaluation"]
    assert (evaluation["every_n_iters"], evaluation["seeds"]) == (3, [100, 200, 300, 400])
    assert resolved["rollout"]["sampling"]["max_tokens"] == 12
    await client.close()


@pytest.mark.parametrize(("effort", "budget"), [("low", 2), ("medium", 6), ("high", 10), ("default", None)])
async def test_a_reasoning_effort_bounds_the_thoughts_of_a_reinforcement_job(sdk: Sdk, effort: str, budget: int | None):
    # The grader, of 12 tokens a call, is not one of the SDK's types.
    client = sdk_of(sdk.user, strict=False)
    method = rl(reasoning_effort=effort)
    job: Any = await client.fine_tuning.jobs.create(model=MODEL, training_file="seeds:0-9", method=method)
    assert job.method.reinforcement.hyperparameters.reasoning_effort == effort
    verdict = validate(await sdk.created(job.id), Registry())
    assert isinstance(verdict, JobValidated)
    sampling = verdict.job["rollout"]["sampling"]
    assert (sampling.get("thinking"), sampling.get("thinking_budget")) == (True if budget else None, budget)
    await client.close()


async def test_the_same_key_is_the_same_job(sdk: Sdk):
    file = await sdk.file()
    keyed: Any = {"extra_headers": {"Idempotency-Key": "once"}}
    first, second = [await sdk.jobs.create(model=MODEL, training_file=file, **keyed) for _ in range(2)]
    assert first.id == second.id
    with pytest.raises(openai.UnprocessableEntityError):
        await sdk.jobs.create(model=MODEL, training_file=file, seed=9, **keyed)


async def test_jobs_are_paged_newest_first_and_found_by_their_metadata(sdk: Sdk):
    made = [(await sdk.supervised(metadata={"k": str(i % 2), 'odd "key"': "x"})).id for i in range(5)]
    await sdk.user.submit(config='[eval]\nmodel = "x"')
    listed = [job.id async for job in sdk.jobs.list(limit=2)]
    assert listed == made[::-1]
    odd = [job.id async for job in sdk.jobs.list(metadata={"k": "1", 'odd "key"': "x"})]
    assert odd == [made[3], made[1]]
    with pytest.raises(openai.NotFoundError):
        await sdk.jobs.list(after="job_0")


async def test_a_job_of_a_toml_is_a_fine_tuning_job_too(sdk: Sdk):
    file = await sdk.file()
    config = f'[job]\nmodel = "{MODEL}"\ndata = "{file}"\n[hyperparameters]\ntotal_steps = 9\nseed = 4\n'
    id = (await sdk.user.submit(config=config, config_name="a.toml"))["id"]
    assert (await sdk.jobs.retrieve(id)).status == "validating_files"
    await sdk.validated(id)
    job = await sdk.shown(id)
    assert (job.status, job.seed, job.training_file, job.hyperparameters.n_epochs) == ("queued", 4, file, "auto")
    assert [j.id async for j in sdk.jobs.list()] == [id]


async def test_an_evaluation_is_no_fine_tuning_job(sdk: Sdk, bus_as: Any):
    id = (await sdk.user.submit())["id"]
    await job_histories.verify(bus_as, sdk.user.org, id, kind="eval")
    with pytest.raises(openai.NotFoundError):
        await sdk.shown(id)
    assert [j async for j in sdk.jobs.list()] == []


async def test_a_job_that_runs_says_when_it_may_end_and_in_the_end_what_it_made(sdk: Sdk):
    id = (await sdk.supervised()).id
    trainer, fence = await sdk.started(id)
    for k in (1, 2):
        await job_histories.step(trainer, fence, k, of=4, loss=1.0 / k, trained_tokens=50.0)
    running = await sdk.shown(id)
    assert running.status == "running"
    assert running.estimated_finish >= running.created_at
    assert (running.trained_tokens, running.fine_tuned_model) == (None, None)
    await job_histories.succeed(trainer, fence, steps=4)
    done = await sdk.shown(id)
    assert (done.status, done.trained_tokens, done.estimated_finish) == ("succeeded", 100, None)
    assert done.fine_tuned_model == f"rl:tiny:{id}"
    assert done.finished_at >= done.created_at
    with pytest.raises(openai.ConflictError):
        await sdk.jobs.cancel(id)


async def test_a_job_that_failed_says_why(sdk: Sdk):
    id = (await sdk.supervised()).id
    trainer, fence = await sdk.started(id)
    event = JobFailed(code="nan_loss", problem=Problem(what="the loss is nan", fix="lower the learning rate"))
    await job_histories.append_as_owner(trainer, fence, lambda _: event)
    job = await sdk.shown(id)
    assert (job.status, job.error.code, job.error.param) == ("failed", "nan_loss", None)
    assert job.error.message == "the loss is nan; lower the learning rate"


async def test_a_job_is_paused_resumed_and_cancelled(sdk: Sdk):
    id = (await sdk.supervised()).id
    refused = "the job is validating_files; expected a job that is running; pause it once it runs"
    with pytest.raises(openai.ConflictError, match=refused):
        await sdk.jobs.pause(id)
    trainer, fence = await sdk.started(id)
    assert (await sdk.jobs.pause(id)).status == "running"
    await job_histories.append_as_owner(trainer, fence, lambda _: JobPaused(step=1))
    client = sdk_of(sdk.user, strict=False)
    await sdk.wait_until_shown((await read_job(trainer, sdk.user.org, id)).last_seq)
    assert (await client.fine_tuning.jobs.retrieve(id)).status == "paused"
    assert (await sdk.jobs.resume(id)).status == "queued"
    cancelled = await sdk.jobs.cancel(id)
    assert (cancelled.status, cancelled.error) == ("cancelled", None)
    assert cancelled.finished_at is not None
    await client.close()


@pytest.mark.parametrize(("window", "read"), [(512, 1000), (5, 2)])
async def test_events_are_paged_newest_first_without_gap_or_repeat(
    sdk: Sdk, window: int, read: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(events_of_openai, "_FIRST_WINDOW", window)
    monkeypatch.setattr(events_of_openai, "_LARGEST_WINDOW", window)
    monkeypatch.setattr(events_of_openai, "_PAGE", read)
    id = (await sdk.supervised(suffix="sums")).id
    trainer, fence = await sdk.started(id)
    watch = Publisher(await sdk.bus_as("gateway"))
    last = 0
    for k in range(1, 31):
        await watch.once(Heartbeat(state="started"), org=sdk.user.org, key=id, id=f"hb{k}")
        last = await job_histories.step(trainer, fence, k, of=30, loss=1.0 / k, lr=1e-5)
    await sdk.wait_until_shown(last)
    events = [event async for event in sdk.jobs.list_events(id, limit=7)]
    messages = [event.message for event in events]
    assert [m.split(":")[0] for m in messages[:30]] == [f"step {k} of 30" for k in range(30, 0, -1)]
    assert len({event.id for event in events}) == len(events) == 34
    assert [event.type for event in events] == ["metrics"] * 30 + ["message"] * 4
    assert events[0].data == {"step": 30, "total_steps": 30, "train_loss": 1 / 30, "loss": 1 / 30, "lr": 1e-5}
    assert events[-1].level == "warn"
    assert "'sums' labels it" in events[-1].message
    for after in ("ftevent_x", "ftevent_", "x"):
        with pytest.raises(openai.NotFoundError):
            await sdk.jobs.list_events(id, after=after)


async def test_checkpoints_are_those_that_are_still_there(sdk: Sdk):
    id = (await sdk.supervised()).id
    trainer, fence = await sdk.started(id)
    publisher, trees = Publisher(trainer), [BlobRef(uri=f"blob://t{k}", size=1, sha256="0") for k in range(4)]
    last = 0
    for k in (1, 2, 3):
        model = ModelRef(id=f"fft:{MODEL}:{id}:step_{k}", tree=trees[k])
        saved = CheckpointSaved(step=k, version=k, attempt=fence.attempt, tree=trees[k], size=9, model=model)
        await publisher.fenced(saved, fence=fence, id=f"c{k}")
        await job_histories.step(trainer, fence, k, loss=1.0 / k, validation_loss=2.0 / k)
    last = await publisher.fenced(BlobExpired(uris=[trees[1].uri]), fence=fence, id="x")
    await sdk.wait_until_shown(last)
    found = [checkpoint async for checkpoint in sdk.jobs.checkpoints.list(id, limit=1)]
    assert [c.step_number for c in found] == [3, 2]
    assert found[1].fine_tuned_model_checkpoint == f"fft:{MODEL}:{id}:step_2"
    assert (found[1].metrics.step, found[1].metrics.train_loss, found[1].metrics.full_valid_loss) == (2, 0.5, 1.0)
    assert (await sdk.client.models.retrieve(found[1].fine_tuned_model_checkpoint)).owned_by == sdk.user.org


async def test_the_result_file_of_a_job_is_its_metrics_as_csv(sdk: Sdk, client_of: Any, start_gateway: Any):
    id = (await sdk.supervised()).id
    trainer, fence = await sdk.started(id)
    files = sdk.client.files
    for k in (1, 2):
        validated = {"validation_loss": 0.25} if k == 2 else {}
        await job_histories.step(trainer, fence, k, of=2, loss=1.0 / k, **validated)
    assert (await sdk.shown(id)).result_files == []
    with pytest.raises(openai.NotFoundError):
        await files.content(f"file-result-{id}")
    last = await job_histories.succeed(trainer, fence, steps=2)
    assert last is not None
    await sdk.wait_until_shown(last)
    [result] = (await sdk.jobs.retrieve(id)).result_files
    content = (await files.content(result)).text
    assert list(csv.DictReader(io.StringIO(content))) == [
        {
            "step": "1",
            "train_loss": "1.0",
            "valid_loss": "",
            "full_valid_loss": "",
            "loss": "1.0",
            "validation_loss": "",
        },
        {
            "step": "2",
            "train_loss": "0.5",
            "valid_loss": "0.25",
            "full_valid_loss": "0.25",
            "loss": "0.5",
            "validation_loss": "0.25",
        },
    ]
    shown = await files.retrieve(result)
    assert (shown.id, shown.purpose, shown.bytes, shown.status) == (
        result,
        "fine-tune-results",
        len(content),
        "processed",
    )
    with pytest.raises(openai.BadRequestError, match="made of a job's metrics; delete the job"):
        await files.delete(result)
    async with sdk_of(await client_of(await start_gateway())) as other:
        with pytest.raises(openai.NotFoundError):
            await other.files.content(result)


async def test_another_organisations_job_is_not_there(sdk: Sdk, client_of: Any, start_gateway: Any):
    id = (await sdk.supervised()).id
    other = await client_of(await start_gateway())
    async with sdk_of(other) as client:
        jobs = client.fine_tuning.jobs
        calls = [jobs.retrieve, jobs.cancel, jobs.pause, jobs.resume]
        for call in calls:
            with pytest.raises(openai.NotFoundError):
                await call(id)
        for listing in (jobs.list_events, jobs.checkpoints.list):
            with pytest.raises(openai.NotFoundError):
                await listing(id)
        with pytest.raises(openai.NotFoundError):
            await jobs.list(after=id)


async def test_a_wrong_key_is_an_authentication_error(user: Client):
    async with openai.AsyncOpenAI(base_url=f"{user.http.base_url}/v1", api_key="wrong") as client:
        with pytest.raises(openai.AuthenticationError, match="not known here"):
            await client.fine_tuning.jobs.list()
