"""What the published clients send becomes a job that the validator takes, or refuses for the right reason."""

from __future__ import annotations

import copy
import json
import tomllib
from pathlib import Path

import msgspec
import pytest

from synth.errors import UserError
from synth.events import JobRejected, JobValidated
from synth.gateway.api.synth.payloads import JobRequest, parse_rl_job, parse_sft_job, read_body
from synth.models import Registry
from synth.validator.validate import validate

RECORDED = [json.loads(line) for line in (Path(__file__).parent / "recorded_creates.jsonl").read_text().splitlines()]
TRAIN_CLI = [r for r in RECORDED if r["scenario"] in ("rl16", "rl23", "policy-rl23", "sft16")]

RL = """
[algorithm]
type = "online"
method = "policy_gradient"
variety = "gspo"
[services]
task_url = "http://from-the-toml"
[model]
base = "Qwen/Qwen3-4B"
trainer_mode = "lora"
label = "x"
[rollout]
env_name = "math"
policy_name = "p"
[training]
iterations_per_epoch = 3
batch_size = 4
group_size = 4
[tags]
experiment = "a"
"""


def translated(request: dict) -> JobRequest:
    return (parse_rl_job if "/rl/" in request["path"] else parse_sft_job)(request["body"])


def validated(job: JobRequest) -> dict:
    outcome = validate(job.created, Registry(Path("no-models-here")))
    assert isinstance(outcome, JobValidated), outcome
    return outcome.job


#: It asks for images, of a model that sees none.
_IMAGES_OF_A_TEXT_MODEL = "policy-rl23"


def test_a_job_that_asks_a_text_model_for_images_is_rejected_by_the_key_that_asks():
    [request] = [r for r in TRAIN_CLI if r["scenario"] == _IMAGES_OF_A_TEXT_MODEL]
    outcome = validate(translated(request).created, Registry(Path("no-models-here")))
    assert isinstance(outcome, JobRejected)
    [problem] = outcome.problems
    assert (problem.where, problem.what.split(" (")[0]) == (
        "rl.json [rollout].use_vision",
        "use_vision = true, and 'Qwen/Qwen3-0.6B' sees no images",
    )


@pytest.mark.parametrize("request_", TRAIN_CLI, ids=lambda r: r["scenario"])
def test_what_the_command_lines_sent_is_a_job(request_):
    if request_["scenario"] == _IMAGES_OF_A_TEXT_MODEL:
        request_ = copy.deepcopy(request_)
        request_["body"]["data"]["model"] = "Qwen/Qwen3-VL-2B-Instruct"
    job = translated(request_)
    resolved = validated(job)
    body = request_["body"]
    assert resolved["kind"] == job.created.kind == ("rl" if "data" in body else "sft")
    assert resolved["mode"] == "lora"
    if "data" in body:
        assert resolved["model"] in (body["data"].get("model"), body["data"].get("base_model"))
        assert resolved["rollout"]["task_url"] == "http://127.0.0.1:18081"
        assert resolved["tags"] == {"experiment": "x"}
        assert job.created.metadata["backend_base_url"] == body["metadata"]["backend_base_url"]
    else:
        assert resolved["training_file"] == body["training_file_id"]
        assert resolved["validation_file"] == body["metadata"]["effective_config"]["data"]["validation_files"][0]
        assert (resolved["batch_size"], resolved["sequence_length"], resolved["lr"]) == (2, 1024, 5e-5)
        assert resolved["validation_every"] == 20
        assert resolved["lora"]["r"] == 16
        assert job.created.metadata == body["metadata"]


def test_what_the_sdk_sent_with_hardly_any_configuration_is_a_job_that_says_what_it_passed_over():
    [request] = [r for r in RECORDED if r["scenario"] == "sdk16-rl-create"]
    outcome = validate(translated(request).created, Registry(Path("no-models-here")))
    assert isinstance(outcome, JobValidated)
    assert (outcome.job["batch_size"], outcome.job["group_size"]) == (2, 4)
    assert outcome.job["rollout"]["task_url"] == "http://127.0.0.1:18081"
    assert any("[a]" in warning or "a has no effect" in warning for warning in outcome.warnings), outcome.warnings


def test_a_task_app_that_nobody_names_is_missed():
    outcome = validate(parse_rl_job({"data": {"model": "Qwen/Qwen3-0.6B"}}).created, Registry(Path("no-models-here")))
    assert isinstance(outcome, JobRejected)
    assert any("task" in p.text() for p in outcome.problems)


def test_an_sdk_job_with_a_rank_is_an_adapter_and_one_without_is_not():
    made = {
        json.dumps(r["body"]["hyperparameters"]): validated(translated(r))
        for r in RECORDED
        if "sdk" in r["scenario"] and "learning" in r["path"]
    }
    assert made['{"n_epochs": 1, "lora_rank": 8}']["lora"]["r"] == 8
    assert made['{"n_epochs": 1}']["lora"] is None


def test_a_training_type_of_dpo_trains_on_pairs():
    hyperparameters = {"n_epochs": 1, "beta": 0.2, "lora_rank": 8}
    body = {"training_type": "dpo", "model": "Qwen/Qwen3-0.6B", "training_file_id": "file_1"}
    job = validated(parse_sft_job(body | {"hyperparameters": hyperparameters}))
    assert (job["kind"], job["dpo"]["beta"], job["mode"], job["lr"]) == ("sft", 0.2, "lora", 1e-5)


def test_the_model_and_the_address_beside_the_toml_win_over_it():
    config = tomllib.loads(RL)
    job = parse_rl_job(
        {"job_type": "rl", "data": {"config": config, "model": "Qwen/Qwen3-8B", "endpoint_base_url": "http://flag"}}
    )
    resolved = validated(job)
    assert resolved["model"] == "Qwen/Qwen3-8B"
    assert resolved["rollout"]["task_url"] == "http://flag"
    assert msgspec.json.decode(job.created.config) == config


def test_the_older_demo_s_body_is_a_job_and_its_secret_is_not_in_it():
    config = tomllib.loads(RL)
    config["model"] = {"name": "Qwen/Qwen3-0.6B"}
    rollout = config.pop("rollout")
    body = {
        "job_type": "rl",
        "compute": {"gpu_type": "A10G", "gpu_count": 1},
        "data": {
            "model": "Qwen/Qwen3-0.6B",
            "endpoint_base_url": "http://task",
            "config": config,
            "config_toml": RL,
            "config_source": "toml_inline",
            "metadata": {"source": "demo"},
            "environment_api_key": "env-secret",
            "rollout": rollout,
        },
    }
    job = parse_rl_job(body)
    assert job.environment_key == "env-secret"
    assert b"env-secret" not in msgspec.json.encode(job.created)
    assert job.created.metadata == {"source": "demo"}
    assert validated(job)["rollout"]["env_name"] == "math"
    del body["data"]["config"]
    assert validated(parse_rl_job(body))["iterations"] == 3


def test_a_flat_body_is_a_job_too():
    trainer = {"batch_size": 2, "group_size": 8}
    job = parse_rl_job(
        {
            "model": "Qwen/Qwen3-4B",
            "endpoint_base_url": "http://t",
            "trainer_id": "tr",
            "trainer": trainer,
            "config": tomllib.loads(RL),
            "metadata": {"a": 1},
        }
    )
    resolved = validated(job)
    assert (resolved["batch_size"], resolved["group_size"]) == (4, 4), "the configuration knows better"
    assert job.created.metadata == {"a": 1, "trainer_id": "tr"}
    config = tomllib.loads(RL)
    del config["training"]["batch_size"], config["training"]["group_size"]
    resolved = validated(
        parse_rl_job({"model": "Qwen/Qwen3-4B", "endpoint_base_url": "http://t", "trainer": trainer, "config": config})
    )
    assert (resolved["batch_size"], resolved["group_size"]) == (2, 8)


@pytest.mark.parametrize("name", ["total_steps", "train_steps", "steps", "max_steps"])
def test_steps_go_by_several_names(name):
    body = {
        "model": "Qwen/Qwen3-0.6B",
        "training_file": "file_x",
        "validation_file": "file_y",
        "hyperparameters": {name: 7},
    }
    resolved = validated(parse_sft_job(body))
    assert resolved["steps"] == 7
    assert (resolved["training_file"], resolved["validation_file"]) == ("file_x", "file_y")


@pytest.mark.parametrize(
    ("hyper", "training", "mode"),
    [
        ({"train_kind": "peft"}, {}, "lora"),
        ({"train_kind": "fft"}, {"mode": "full_finetune"}, "full"),
        ({}, {"use_qlora": True}, "qlora"),
        ({"train_kind": "peft"}, {"mode": "lora", "use_qlora": False}, "lora"),
        ({}, {"mode": "sft_offline"}, "full"),
    ],
)
def test_an_adapter_is_trained_where_any_of_three_places_says_so(hyper, training, mode):
    metadata = {"effective_config": {"training": training}}
    body = {"model": "Qwen/Qwen3-0.6B", "training_file_id": "file_x", "hyperparameters": hyper, "metadata": metadata}
    assert validated(parse_sft_job(body))["mode"] == mode


@pytest.mark.parametrize(
    ("make", "body", "place"),
    [
        (parse_rl_job, {"data": {"job_config_id": "c"}}, "data.job_config_id"),
        (parse_rl_job, {"data": {"config": []}}, "data.config"),
        (parse_rl_job, {"data": 3}, "data"),
        (parse_rl_job, {"job_type": "sft", "data": {}}, "job_type"),
        (parse_rl_job, {"data": {"config": {}, "model": 3}}, "data.model"),
        (parse_sft_job, {"training_type": "rl_online"}, "training_type"),
        (parse_sft_job, {"training_type": "ppo"}, "training_type"),
        (parse_sft_job, {"hyperparameters": [1]}, "hyperparameters"),
        (
            parse_sft_job,
            {"metadata": {"effective_config": {"data": {"validation_files": ["a", "b"]}}}},
            "metadata.effective_config.data.validation_files",
        ),
        (parse_sft_job, {"hyperparameters": {"x": "y" * 300_000}}, "config"),
        (parse_rl_job, {"data": {"config_toml": "a = [" + "{b=1}," * 50_000 + "]"}}, "data.config_toml"),
    ],
)
def test_a_body_of_another_shape_is_refused_at_its_place(make, body, place):
    with pytest.raises(UserError) as refused:
        make(body)
    assert [p.where for p in refused.value.problems] == [place]


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"a": "\xff"}', b'{"a": "\\ud800"}', b"[" * 100_000, b'{"a":' * 5000]
)
def test_what_is_no_json_object_is_refused(body):
    with pytest.raises(UserError, match="JSON object"):
        read_body(body)
