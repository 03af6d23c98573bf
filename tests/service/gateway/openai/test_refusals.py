"""What the openai SDK is told of a job that cannot be run: one error that names the field."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from synth.bus.publish import Publisher
from synth.events import (
    FileRejected,
    LineProblem,
)
from tests.service.gateway.conftest import Client
from tests.service.gateway.openai.sdk_jobs import APP, MODEL, Sdk, rl, sdk_of, sft


@pytest.fixture
async def sdk(user: Client, bus_as: Any) -> AsyncIterator[Sdk]:
    async with sdk_of(user) as client:
        yield Sdk(client, user, bus_as)


PYTHON = {"type": "python", "name": "p", "source": "def grade(sample, item):\n    return 1"}
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "an unknown model": ({"model": "gpt-9"}, "model", "gpt-9"),
    "a model that is experimental": (
        {"model": "Qwen/Qwen3-4B-Thinking-2507"},
        "model",
        'extra_body={"allow_experimental": True}',
    ),
    "an unknown file": ({"training_file": "file_0"}, "training_file", "file_0"),
    "seeds to copy from": ({"training_file": "seeds:0-9"}, "training_file", "reinforcement"),
    "an unknown method": ({"method": {"type": "ppo"}}, "method.type", "'ppo' is not served"),
    "a beta of 0": (
        {"method": {"type": "dpo", "dpo": {"hyperparameters": {"beta": 0}}}},
        "method.dpo.hyperparameters.beta",
        "greater than 0",
    ),
    "a beta of a supervised job": ({"method": sft(beta=0.1)}, "method.supervised.hyperparameters.beta", "no such"),
    "dpo with hyperparameters of supervised jobs": (
        {"method": {"type": "dpo"}, "hyperparameters": {"n_epochs": 1}},
        "hyperparameters",
        "move them to method.dpo.hyperparameters",
    ),
    "a file and a model at once": (
        {"model": "gpt-9", "training_file": "file-abc"},
        "training_file",
        "there is no file 'file-abc'; upload it with client.files.create\nmodel: unknown model 'gpt-9'",
    ),
    "an environment that no event could carry": (
        {
            "method": {"type": "reinforcement", "reinforcement": {"grader": APP | {"env_config": {"a": 2**70}}}},
            "training_file": "seeds:0-9",
        },
        "method.reinforcement.grader.env_config.a",
        "64 bits",
    ),
    "an integration": ({"integrations": [{"type": "wandb", "wandb": {"project": "p"}}]}, "integrations", "not served"),
    "no epochs": ({"method": sft(n_epochs=0)}, "method.supervised.hyperparameters.n_epochs", "greater than or equal"),
    "an unknown field": ({"extra_body": {"modle": "x"}}, "modle", "no such field"),
    "settings of another method": ({"method": sft() | {"dpo": {}}}, "method.dpo", "another method"),
    "hyperparameters twice": ({"method": sft(), "hyperparameters": {}}, "hyperparameters", "twice"),
    "rows to reinforce": ({"method": rl()}, "training_file", "seeds:0-99"),
    "no task app": ({"method": {"type": "reinforcement"}}, "method.reinforcement", "settings are missing"),
    "a grader that is not run here": (
        {"method": {"type": "reinforcement", "reinforcement": {"grader": PYTHON}}},
        "method.reinforcement.grader",
        "runs no code",
    ),
    "a task app that is no address": (
        {
            "method": {"type": "reinforcement", "reinforcement": {"grader": APP | {"url": "nowhere"}}},
            "training_file": "seeds:0-9",
        },
        "method.reinforcement.grader.url",
        "nowhere",
    ),
    "a task app without its environment": (
        {"method": {"type": "reinforcement", "reinforcement": {"grader": {"type": "task_app", "url": "http://x"}}}},
        "method.reinforcement.grader.env_name",
        "Field required",
    ),
    "nothing to evaluate on": (
        {"method": rl(eval_interval=2), "training_file": "seeds:0-9"},
        "method.reinforcement.hyperparameters.eval_interval",
        "nothing to evaluate on",
    ),
    "an effort that is none": (
        {"method": rl(reasoning_effort="xhigh"), "training_file": "seeds:0-9"},
        "method.reinforcement.hyperparameters.reasoning_effort",
        "'default', 'low', 'medium' or 'high'",
    ),
    "thoughts of a model that never thinks": (
        {
            "model": "Qwen/Qwen3-4B-Instruct-2507",
            "method": rl(reasoning_effort="high"),
            "training_file": "seeds:0-9",
            "extra_body": {"allow_experimental": True},
        },
        "method.reinforcement.hyperparameters.reasoning_effort",
        "never thinks",
    ),
    "an effort beside the app's own bound": (
        {
            "method": {
                "type": "reinforcement",
                "reinforcement": {
                    "grader": APP | {"policy_config": {"thinking_budget": 9}},
                    "hyperparameters": {"reasoning_effort": "low"},
                },
            },
            "training_file": "seeds:0-9",
        },
        "method.reinforcement.hyperparameters.reasoning_effort",
        "beside the thinking_budget of the policy_config",
    ),
    "a format that is enforced": (
        {
            "method": {
                "type": "reinforcement",
                "reinforcement": {"grader": APP, "response_format": {"type": "json_object"}},
            },
            "training_file": "seeds:0-9",
        },
        "method.reinforcement.response_format",
        "rollouts are sampled freely",
    ),
    "a temperature of nothing": (
        {
            "method": {
                "type": "reinforcement",
                "reinforcement": {"grader": APP | {"policy_config": {"temperature": 0.0}}},
            },
            "training_file": "seeds:0-9",
        },
        "method.reinforcement.grader.policy_config.temperature",
        "nothing can be learned",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_cannot_be_run_is_one_400_that_names_its_field(sdk: Sdk, name: str):
    change, param, words = REFUSED[name]
    request = {"model": MODEL, "training_file": await sdk.file()} | change
    with pytest.raises(openai.BadRequestError) as refused:
        await sdk.jobs.create(**request)
    assert refused.value.param == param
    assert words in refused.value.message
    assert "Traceback" not in refused.value.message


@pytest.mark.parametrize(("value", "status"), [("x" * 600_000, 413), ("\ud800", 400), ({"deep": [[{}]]}, 200)])
async def test_whatever_an_environment_is_given_is_taken_or_refused(sdk: Sdk, value: Any, status: int):
    grader = APP | {"env_config": {"a": value}}
    body = {"model": MODEL, "training_file": "seeds:0-9", "method": {"type": "reinforcement"}}
    body["method"] |= {"reinforcement": {"grader": grader}}
    headers = {"Content-Type": "application/json"}
    reply = await sdk.user.http.post("/v1/fine_tuning/jobs", content=json.dumps(body), headers=headers)
    assert reply.status_code == status, reply.text


async def test_a_file_with_wrong_lines_is_refused_with_them(sdk: Sdk):
    file = await sdk.file(b"{")
    problem = LineProblem(line=3, path="$.messages", reason="not a list")
    publisher = Publisher(await sdk.bus_as("files"))
    seq = await publisher.once(FileRejected(bad_lines=9, problems=[problem]), org=sdk.user.org, key=file, id="1")
    await sdk.wait_until_shown(seq)
    with pytest.raises(openai.BadRequestError, match=r"9 bad lines: line 3 \$\.messages: not a list") as refused:
        await sdk.jobs.create(model=MODEL, training_file=file)
    assert (refused.value.param, refused.value.code) == ("training_file", "invalid_file")


async def test_a_route_of_openai_that_is_not_served_is_a_404_that_names_those_that_are(sdk: Sdk):
    calls = [
        sdk.client.responses.retrieve("resp_1"),
        sdk.client.embeddings.create(model=MODEL, input="hello"),
        sdk.client.batches.list(),
        sdk.client.vector_stores.list(),
    ]
    for call in calls:
        with pytest.raises(openai.NotFoundError) as refused:
            await call
        expected = (
            "; expected of OpenAI's API one of /v1/chat/completions, /v1/files, /v1/fine_tuning/alpha/graders/run, "
            "/v1/fine_tuning/alpha/graders/validate, /v1/fine_tuning/jobs, /v1/models, /v1/responses; "
            "GET /openapi.json has all of them"
        )
        assert expected in refused.value.message
