"""A whole life of a model through the published openai SDK, with nothing changed but its address and key."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from openai.types.fine_tuning import FineTuningJob
from pydantic import BaseModel, ConfigDict

from synth.demo.math import dataset, problems
from synth.runtime.environment.env_file import read_env_file
from tests.e2e.platform import Platform
from tests.e2e.task_apps import Served

pytestmark = pytest.mark.timeout(1200)

MODEL = "tiny-qwen3"
ASK: Any = [{"role": "user", "content": "What is 12 + 34?"}]


@pytest.fixture(scope="module")
def client(platform: Platform) -> Iterator[openai.OpenAI]:
    """Strict: an answer that is not what the SDK's types say is an error."""
    key = read_env_file(platform.shell.folder / ".env")["SYNTH_API_KEY"]
    url = f"http://127.0.0.1:{platform.shell.port}/v1"
    with openai.OpenAI(base_url=url, api_key=key, timeout=60, _strict_response_validation=True) as made:
        yield made


@pytest.fixture(scope="module")
def sft_job(platform: Platform, client: openai.OpenAI, rows: Path) -> FineTuningJob:
    """A supervised job that has succeeded: one pass over 512 rows in 32 steps."""
    with rows.open("rb") as body:
        file = client.files.create(file=body, purpose="fine-tune")
    hyperparameters = {"batch_size": 16, "learning_rate_multiplier": 500}
    method: Any = {"type": "supervised", "supervised": {"hyperparameters": hyperparameters}}
    job = client.fine_tuning.jobs.create(model=MODEL, training_file=file.id, seed=7, suffix="sums", method=method)
    platform.succeeded(job.id)
    assert client.files.retrieve(file.id).status == "processed"
    return client.fine_tuning.jobs.retrieve(job.id)


def test_a_supervised_job_ends_in_a_model(sft_job: FineTuningJob):
    assert (sft_job.status, sft_job.fine_tuned_model) == ("succeeded", f"fft:{MODEL}:{sft_job.id}")
    assert (sft_job.seed, sft_job.hyperparameters.batch_size, sft_job.hyperparameters.n_epochs) == (7, 16, 1)
    assert sft_job.hyperparameters.learning_rate_multiplier == 500
    assert sft_job.trained_tokens is not None
    assert sft_job.trained_tokens > 512
    assert sft_job.finished_at is not None
    assert sft_job.finished_at >= sft_job.created_at


def test_its_events_tell_each_step_once_newest_first(sft_job: FineTuningJob, client: openai.OpenAI):
    events = list(client.fine_tuning.jobs.list_events(sft_job.id, limit=9))
    steps: list[Any] = [event.data for event in events if event.type == "metrics"]
    assert [data["step"] for data in steps] == list(range(32, 0, -1))
    assert steps[0]["train_loss"] < steps[-1]["train_loss"]
    assert len({event.id for event in events}) == len(events)
    assert sft_job.fine_tuned_model is not None
    assert sft_job.fine_tuned_model in events[0].message


def test_the_model_and_its_checkpoints_talk(sft_job: FineTuningJob, client: openai.OpenAI):
    checkpoints = list(client.fine_tuning.jobs.checkpoints.list(sft_job.id))
    assert checkpoints
    assert checkpoints[0].step_number == 32
    assert checkpoints[0].metrics.train_loss is not None
    assert sft_job.fine_tuned_model is not None
    assert sft_job.fine_tuned_model in [model.id for model in client.models.list()]
    said: list[str] = []
    for model in (sft_job.fine_tuned_model, checkpoints[0].fine_tuned_model_checkpoint):
        assert client.models.retrieve(model).id == model
        whole = client.chat.completions.create(model=model, messages=ASK, max_tokens=16, temperature=0)
        said.append(whole.choices[0].message.content or "")
    chunks = client.chat.completions.create(
        model=sft_job.fine_tuned_model, messages=ASK, max_tokens=16, temperature=0, stream=True
    )
    assert said[0] == said[1] == "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


class Verdict(BaseModel):
    """What the SDK turns into a strict JSON schema."""

    model_config = ConfigDict(extra="forbid")

    right: bool
    why: Literal["the sum", "the carry"]


def test_an_answer_is_the_json_that_was_asked_for(sft_job: FineTuningJob, client: openai.OpenAI):
    asked: Any = {"model": sft_job.fine_tuned_model, "messages": ASK, "max_tokens": 64}
    parsed = client.chat.completions.parse(**asked, response_format=Verdict)
    assert parsed.choices[0].finish_reason == "stop"
    assert isinstance(parsed.choices[0].message.parsed, Verdict)
    with client.chat.completions.stream(**asked, response_format=Verdict) as stream:
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Verdict)
    bad: Any = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": {"type": "strin"}}}
    with pytest.raises(openai.BadRequestError, match="Invalid type: strin") as refused:
        client.chat.completions.create(**asked, response_format=bad)
    assert refused.value.param == "response_format.json_schema.schema"


def test_a_forced_call_of_a_strict_function_fits_its_schema(sft_job: FineTuningJob, client: openai.OpenAI):
    parameters = Verdict.model_json_schema()
    tool: Any = {"type": "function", "function": {"name": "judge", "strict": True, "parameters": parameters}}
    reply = client.chat.completions.create(
        model=sft_job.fine_tuned_model or "", messages=ASK, max_tokens=64, tools=[tool], tool_choice="required"
    )
    calls: Any = reply.choices[0].message.tool_calls
    assert Verdict.model_validate_json(calls[0].function.arguments)


def test_a_conversation_too_long_for_the_model_is_openais_error(sft_job: FineTuningJob, client: openai.OpenAI):
    messages: Any = [{"role": "user", "content": "12 + 34 " * 5000}]
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match="maximum context length is") as refused:
            client.chat.completions.create(model=sft_job.fine_tuned_model or "", messages=messages, stream=stream)
        assert refused.value.code == "context_length_exceeded"


def test_what_has_no_effect_is_named_in_the_answer(sft_job: FineTuningJob, client: openai.OpenAI):
    asked: Any = {"model": sft_job.fine_tuned_model, "messages": ASK, "max_tokens": 2}
    reply: Any = client.chat.completions.create(**asked, service_tier="flex")
    assert [w.partition(" ")[0] for w in reply.warnings] == ["service_tier"]
    with pytest.raises(openai.BadRequestError, match="there is no field `colour`"):
        client.chat.completions.create(**asked, extra_body={"colour": "red"})


def _preferences(count: int, *, seed: int) -> bytes:
    """Pairs as the OpenAI API has them: a sum worked out, and a lower bound of it."""
    rows = [
        {
            "input": {"messages": pair["messages"]},
            "preferred_output": pair["chosen"],
            "non_preferred_output": pair["rejected"],
        }
        for pair in dataset.preferences(count, seed=seed)
    ]
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def test_preferences_are_learnt_from_it(sft_job: FineTuningJob, platform: Platform, client: openai.OpenAI):
    train, held_out = (
        client.files.create(file=("preferences.jsonl", _preferences(count, seed=seed)), purpose="fine-tune")
        for count, seed in ((128, 1), (32, 2))
    )
    hyperparameters: Any = {"beta": 0.2, "n_epochs": 2, "batch_size": 16, "learning_rate_multiplier": 300}
    method: Any = {"type": "dpo", "dpo": {"hyperparameters": hyperparameters}}
    job = client.fine_tuning.jobs.create(
        model=sft_job.fine_tuned_model or "",
        training_file=train.id,
        validation_file=held_out.id,
        method=method,
    )
    verdict = platform.succeeded(job.id)["verdict"]
    assert (verdict["outcome"], verdict["measure"], verdict["count"]) == ("learned", "validation_loss", 32)
    assert verdict["before"] == pytest.approx(math.log(2), abs=1e-3)
    done = client.fine_tuning.jobs.retrieve(job.id)
    assert done.fine_tuned_model == f"fft:{MODEL}:{job.id}"
    assert done.fine_tuned_model is not None
    assert done.method is not None
    assert done.method.dpo is not None
    assert done.method.dpo.hyperparameters is not None
    assert done.method.dpo.hyperparameters.beta == 0.2
    steps = platform.steps(job.id)
    assert steps[0]["loss"] == pytest.approx(math.log(2), abs=1e-3)
    assert steps[-1]["rewards_chosen"] > steps[-1]["rewards_rejected"]
    assert steps[-1]["validation_preference_accuracy"] >= 0.9
    assert client.models.retrieve(done.fine_tuned_model).id == done.fine_tuned_model


def test_reinforcement_goes_on_from_it(
    sft_job: FineTuningJob, platform: Platform, client: openai.OpenAI, letters_app: Served
):
    grader = {"type": "task_app", "url": letters_app.url, "env_name": "letters", "policy_config": {"max_tokens": 12}}
    hyperparameters = {"batch_size": 4, "compute_multiplier": 0.5}
    method: Any = {"type": "reinforcement", "reinforcement": {"grader": grader, "hyperparameters": hyperparameters}}
    # A grader that is not OpenAI's is none of the types that a strict client knows.
    loose = client.copy()
    loose._strict_response_validation = False
    assert sft_job.fine_tuned_model is not None
    job = loose.fine_tuning.jobs.create(model=sft_job.fine_tuned_model, training_file="seeds:0-7", method=method)
    platform.succeeded(job.id)
    learned = loose.fine_tuning.jobs.retrieve(job.id)
    assert (learned.fine_tuned_model, learned.training_file) == (f"rl:{MODEL}:{job.id}", "seeds:0-7")
    events = list(client.fine_tuning.jobs.list_events(job.id, limit=50))
    steps: list[Any] = [event.data for event in events if event.type == "metrics"]
    assert [data["step"] for data in steps] == [2, 1]
    assert all(0 < data["reward_mean"] <= 1 for data in steps)
    reply = client.chat.completions.create(model=learned.fine_tuned_model or "", messages=ASK, max_tokens=4)
    assert reply.choices[0].finish_reason in ("stop", "length")


def test_another_job_is_cancelled(sft_job: FineTuningJob, platform: Platform, client: openai.OpenAI):
    hyperparameters: Any = {"n_epochs": 1000}
    job = client.fine_tuning.jobs.create(
        model=MODEL, training_file=sft_job.training_file, hyperparameters=hyperparameters
    )
    asked = client.fine_tuning.jobs.cancel(job.id)
    assert asked.status in ("running", "cancelled")
    _, ended = platform.outcome(job.id)
    assert ended["state"] == "cancelled"
    cancelled = client.fine_tuning.jobs.retrieve(job.id)
    assert (cancelled.status, cancelled.fine_tuned_model, cancelled.error) == ("cancelled", None, None)


def test_a_mistake_is_told_at_once_and_makes_no_job(sft_job: FineTuningJob, client: openai.OpenAI):
    before = client.fine_tuning.jobs.list(limit=1).data
    with pytest.raises(openai.BadRequestError, match="unknown model 'tiny-qwen4'") as refused:
        client.fine_tuning.jobs.create(model="tiny-qwen4", training_file=sft_job.training_file)
    assert "did you mean 'tiny-qwen3'" in refused.value.message
    assert client.fine_tuning.jobs.list(limit=1).data == before


def _prompts(count: int, *, seed: int) -> bytes:
    """Sums without their answers, and the worked answer for a grader to look for."""
    pairs = random.Random(seed).sample(problems.pairs(held_out=False), count)
    rows = [
        {"messages": [{"role": "user", "content": problems.question(a, b)}], "answer": f"answer {a + b}"}
        for a, b in pairs
    ]
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


@pytest.mark.long
def test_reinforcement_by_a_grader_learns_from_a_file_of_prompts(
    sft_job: FineTuningJob, platform: Platform, client: openai.OpenAI
):
    said = "{{sample.output_text}}"
    like = {"type": "string_check", "name": "like", "operation": "like", "input": said, "reference": "answer "}
    near = {
        "type": "text_similarity",
        "name": "near",
        "evaluation_metric": "fuzzy_match",
        "input": said,
        "reference": "{{item.answer}}",
    }
    grader = {
        "type": "multi",
        "name": "worked",
        "graders": {"like": like, "near": near},
        "calculate_output": "0.8 * like + 0.2 * near",
    }
    files = [
        client.files.wait_for_processing(client.files.create(file=(name, body), purpose="fine-tune").id)
        for name, body in (("prompts.jsonl", _prompts(64, seed=1)), ("held-out.jsonl", _prompts(32, seed=2)))
    ]
    hyperparameters = {"n_epochs": 2, "batch_size": 8, "learning_rate_multiplier": 400, "eval_interval": 16}
    method: Any = {"type": "reinforcement", "reinforcement": {"grader": grader, "hyperparameters": hyperparameters}}
    # To the SDK's types, `graders` is one grader: a strict client refuses several, as OpenAI's API answers them.
    loose = client.copy()
    loose._strict_response_validation = False
    assert sft_job.fine_tuned_model is not None
    job = loose.fine_tuning.jobs.create(
        model=sft_job.fine_tuned_model, training_file=files[0].id, validation_file=files[1].id, method=method
    )
    platform.succeeded(job.id)
    learned = loose.fine_tuning.jobs.retrieve(job.id)
    assert (learned.training_file, learned.validation_file) == (files[0].id, files[1].id)
    assert learned.method is not None
    assert learned.method.reinforcement is not None
    assert learned.method.reinforcement.grader.to_dict() == grader
    events = list(client.fine_tuning.jobs.list_events(job.id, limit=100))
    found: list[Any] = [event.data for event in events if event.type == "metrics"]
    held_out = {data["step"]: data["values"]["reward_mean"] for data in found if "instances" in data}
    assert sorted(held_out) == [0, 16]
    # About 0.4 of the replies are worked before, and nearly all after.
    assert held_out[16] > held_out[0] + 0.2
