"""The validator service: a TOML becomes a resolved job, or every problem with it."""

from __future__ import annotations

import msgspec
import pytest

from synth.blobs import BlobStore
from synth.bus.history.job_log import append_decided, read_job
from synth.bus.replay import replay
from synth.events import JobCreated, JobRejected, JobValidated, JobWithdrawn
from synth.ids import new_job_id, new_org_id
from synth.jobs.lifecycle import State
from synth.methods.job import job_from_data
from synth.methods.rl import RlJob
from synth.methods.sft import SftJob
from synth.models import Registry
from synth.validator.validate import validate
from tests.service.jobs import RL, SFT, create, make_model_dir, wait_for
from tests.service.process import running


@pytest.fixture(scope="module")
def validator(settings_of, bus_admin, cluster_dir, tmp_path_factory):
    make_model_dir(cluster_dir)
    with running("validator", settings_of("validator"), tmp_path_factory.mktemp("validator") / "log") as process:
        yield process


async def outcome(bus_as, config: str, **overrides) -> JobValidated | JobRejected:
    org, job = new_org_id(), new_job_id()
    gateway = await bus_as("gateway")
    await create(gateway, org, job, config, **overrides)
    found = await wait_for(gateway, f"job.*.{org}.{job}", "job.validated", "job.rejected")
    assert isinstance(found.event, JobValidated | JobRejected)
    return found.event


async def test_a_right_sft_file_becomes_a_resolved_job(validator, bus_as):
    found = await outcome(bus_as, SFT)
    assert isinstance(found, JobValidated), found
    job = job_from_data(found.job)
    assert isinstance(job, SftJob)
    assert (job.model, job.training_file, job.steps) == ("tiny-qwen3", "file_1", 5)


def test_a_job_may_start_from_a_fine_tuned_model_of_a_known_base(cluster_dir):
    created = JobCreated(
        config=RL,
        config_name="job.toml",
        body_sha256="0",
        model="fft:tiny-qwen3:job_abc",
        task_url="http://127.0.0.1:8001",
    )
    found = validate(created, Registry(make_model_dir(cluster_dir)))
    assert isinstance(found, JobValidated), found
    job = job_from_data(found.job)
    assert isinstance(job, RlJob)
    assert (job.model, job.base_model) == ("fft:tiny-qwen3:job_abc", "tiny-qwen3")
    assert job.rollout.task_url == "http://127.0.0.1:8001"


async def test_a_job_that_starts_from_what_is_not_there_is_rejected(validator, bus_as):
    found = await outcome(bus_as, RL, model="fft:tiny-qwen3:job_abc", task_url="http://127.0.0.1:8001")
    assert isinstance(found, JobRejected)
    assert [p.what for p in found.problems] == ["the model 'fft:tiny-qwen3:job_abc' has not been published"]


async def test_every_problem_is_named_at_once_with_its_place(validator, bus_as):
    wrong = SFT.replace("total_steps", "total_stepz").replace('"tiny-qwen3"', '"tiny-qwen4"')
    found = await outcome(bus_as, wrong, name="mine.toml")
    assert isinstance(found, JobRejected)
    texts = [p.text() for p in found.problems]
    assert any("total_stepz" in t and "mine.toml:10" in t and "total_steps" in t for t in texts), texts
    assert any("tiny-qwen4" in t and "did you mean 'tiny-qwen3'" in t for t in texts), texts


@pytest.mark.parametrize(
    "config", ["[job", "", "x = " + "[" * 5000, 'a = "\udcff"'.encode(errors="surrogateescape").decode("latin-1")]
)
async def test_text_that_is_no_job_is_rejected_and_not_retried(validator, bus_as, config):
    found = await outcome(bus_as, config)
    assert isinstance(found, JobRejected)
    assert found.problems
    assert all(p.where for p in found.problems)


async def test_a_redelivered_event_of_a_job_that_went_on_changes_nothing(validator, bus_as, tmp_path):
    org, job = new_org_id(), new_job_id()
    gateway = await bus_as("gateway")
    await create(gateway, org, job, SFT)
    await wait_for(gateway, f"job.*.{org}.{job}", "job.validated")
    await append_decided(gateway, org, job, lambda _: JobWithdrawn())
    before = (await read_job(gateway, org, job)).facts
    from synth.bus.recorded import Recorded
    from synth.validator.handlers import ValidatorHandlers

    created = before[0]
    assert isinstance(created, Recorded)
    assert isinstance(created.event, JobCreated)
    blobs = BlobStore.open(f"file:{tmp_path}")
    handlers = ValidatorHandlers(await bus_as("validator"), blobs, Registry(None))
    await handlers.job_created(created, created.event)
    after = await read_job(gateway, org, job)
    assert [f.seq for f in after.facts] == [f.seq for f in before]
    assert after.state is State.CANCELLED


async def test_a_hundred_jobs_are_each_decided_once(validator, bus_as):
    org = new_org_id()
    gateway = await bus_as("gateway")
    jobs = [new_job_id() for _ in range(100)]
    for job in jobs:
        await create(gateway, org, job, SFT)
    for job in jobs:
        await wait_for(gateway, f"job.*.{org}.{job}", "job.validated")
    assert len(await replay(gateway, [f"job.validated.{org}.>"])) == 100


async def test_a_job_that_cannot_be_decided_about_is_rejected_with_its_dead_letter(validator, bus_as):
    org, job = new_org_id(), new_job_id()
    gateway = await bus_as("gateway")
    await gateway.js.publish(f"job.created.{org}.{job}", b"garbage", stream="EVENTS")
    found = await wait_for(gateway, f"job.*.{org}.{job}", "job.rejected")
    assert isinstance(found.event, JobRejected)
    [problem] = found.event.problems
    assert problem.what.startswith("internal error: its body is not a job.created")
    assert problem.where.startswith("validator, dead letter ")


def test_more_problems_than_an_event_can_carry_are_cut_off():
    config = SFT + "\n".join(f"key_{i} = 1" for i in range(2_000))
    found = validate(JobCreated(config=config, config_name="j.toml", body_sha256=""), Registry(None))
    assert isinstance(found, JobRejected)
    assert len(found.problems) == 101
    assert "more problems" in found.problems[-1].what


def test_an_experimental_model_is_trained_only_by_those_who_ask_for_it():
    config = '[job]\nmodel = "Qwen/Qwen3-4B-Thinking-2507"\ndata = "file_1"\n'
    created = JobCreated(config=config, config_name="j.toml", body_sha256="")
    refused = validate(created, Registry(None))
    assert isinstance(refused, JobRejected)
    assert "--allow-experimental" in refused.problems[0].fix
    asked = msgspec.structs.replace(created, allow_experimental=True)
    assert isinstance(validate(asked, Registry(None)), JobValidated)


def test_the_label_of_a_file_names_the_job_that_was_given_no_name():
    config = RL.replace("[model]\n", '[model]\nlabel = "sums"\n').replace("tiny-qwen3", "Qwen/Qwen3-0.6B")
    created = JobCreated(config=config, config_name="j.toml", body_sha256="")
    for name, expected in ((None, "sums"), ("mine", None)):
        found = validate(msgspec.structs.replace(created, name=name), Registry(None))
        assert isinstance(found, JobValidated)
        assert found.name == expected
