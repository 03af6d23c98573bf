"""Bad job files: every mistake at once, each with its place and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from synth.errors import Problem, UserError
from synth.jobs.parse.toml import read_data, read_toml
from synth.jobs.parse.validate import load_job, load_job_data
from synth.jobs.resolve.job import Overrides, resolve_job
from synth.models import Registry

RL = """\
[services]
task_url = "http://127.0.0.1:8001"
[model]
base = "tiny-qwen3"
[rollout]
env_name = "math"
[training]
iterations_per_epoch = 3
"""
SFT = """\
[job]
model = "tiny-qwen3"
data = "file_1"
[hyperparameters]
n_epochs = 1
"""


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    (tmp_path / "tiny-qwen3").mkdir()
    (tmp_path / "tiny-qwen3" / "config.json").write_text('{"model_type": "qwen3"}')
    return Registry(tmp_path)


def problems(text: str | bytes, registry: Registry, **overrides: str) -> list[Problem]:
    with pytest.raises(UserError) as caught:
        resolve_job(read_toml(text, name="job.toml"), overrides=Overrides(**overrides), registry=registry)  # pyright: ignore[reportArgumentType]
    return caught.value.problems


def test_a_misspelt_key_is_named_with_its_line_and_the_nearest_key(registry: Registry) -> None:
    (problem,) = problems(RL + "lerning_rate = 1e-4\n", registry)
    assert problem.where == "job.toml:9 [training].lerning_rate"
    assert problem.what == "unknown key 'lerning_rate'"
    assert problem.fix == "did you mean 'learning_rate'?"


def test_a_misspelt_section_is_read_as_the_one_it_resembles(registry: Registry) -> None:
    text = RL.replace("[training]", "[trainig]").replace("iterations_per_epoch = 3", 'iterations_per_epoch = "3"')
    unknown, value = problems(text, registry)
    assert (unknown.where, unknown.fix) == ("job.toml:7 [trainig]", "did you mean 'training'?")
    assert value.where == "job.toml:8 [trainig].iterations_per_epoch"
    assert value.expected == "a whole number"


def test_what_is_wrong_with_a_value_is_told_at_its_line_below_a_misspelt_section(registry: Registry) -> None:
    text = RL.replace("[services]", "[service]").replace("http://", "htp://")
    unknown, value = problems(text, registry)
    assert unknown.fix == "did you mean 'services'?"
    assert value.where == "job.toml:2 [service].task_url"


def test_a_key_in_the_wrong_section_is_sent_to_the_right_one(registry: Registry) -> None:
    (problem,) = problems(RL + "[lora]\nlearning_rate = 1e-4\n", registry)
    assert problem.where == "job.toml:10 [lora].learning_rate"
    assert problem.fix == "did you mean to put it into [training]?"


def test_a_misspelt_key_of_a_nested_table_is_found(registry: Registry) -> None:
    (problem,) = problems(SFT + "[hyperparameters.parallelism]\nbf15 = true\n", registry)
    assert problem.where == "job.toml:7 [hyperparameters.parallelism].bf15"
    assert problem.fix == "did you mean 'bf16'?"


def test_every_problem_is_reported_at_once_in_the_order_of_the_file(registry: Registry) -> None:
    text = RL.replace("tiny-qwen3", "tiny-qwen4").replace("http://127", "ftp://127") + "group_sze = 8\n"
    found = problems(text, registry)
    assert [p.where for p in found] == [
        "job.toml:2 [services].task_url",
        "job.toml:4 [model].base",
        "job.toml:9 [training].group_sze",
    ]


@pytest.mark.parametrize(
    ("beside", "place", "what"),
    [
        ('source = "fft:tiny-qwen3:job_1"', "job.toml:5 [model].source", "[model].source = 'fft:tiny-qwen3:job_1'"),
        ('[policy]\nmodel_name = "other"', "job.toml:6 [policy].model_name", "[policy].model_name = 'other'"),
        ('[policy]\nmodel = "other"', "job.toml:6 [policy].model", "[policy].model = 'other'"),
        (
            '[rollout.policy_config]\nmodel = "other"',
            "job.toml:6 [rollout.policy_config].model",
            "[rollout.policy_config].model = 'other'",
        ),
    ],
)
def test_two_models_are_one_error_that_names_both(beside: str, place: str, what: str, registry: Registry) -> None:
    base = 'base = "tiny-qwen3"\n'
    (problem,) = problems(RL.replace(base, f"{base}{beside}\n"), registry)
    assert (problem.where, problem.what) == (place, f"[model].base = 'tiny-qwen3' and {what} are two models")
    assert "--model" in problem.fix


def test_neither_base_nor_source_is_one_error(registry: Registry) -> None:
    (problem,) = problems(RL.replace('base = "tiny-qwen3"', ""), registry)
    assert problem.where == "job.toml:3 [model]"
    assert "neither base nor source" in problem.what
    assert "--model" in problem.fix


def test_an_unknown_model_is_an_error_with_the_nearest_known_one(registry: Registry) -> None:
    (problem,) = problems(RL.replace("tiny-qwen3", "tinyqwen3"), registry)
    assert problem.where == "job.toml:4 [model].base"
    assert problem.fix == "did you mean 'tiny-qwen3'?"


def test_an_unknown_model_of_the_flag_is_the_flags_fault(registry: Registry) -> None:
    (problem,) = problems(RL, registry, model="Qwen/Qwen3-0.6")
    assert problem.where == "--model"
    assert problem.fix == "did you mean 'Qwen/Qwen3-0.6B'?"


def test_a_missing_dataset_is_an_error_that_names_the_flag(registry: Registry) -> None:
    (problem,) = problems(SFT.replace('data = "file_1"', ""), registry)
    assert problem.what == "there is no dataset"
    assert "--dataset" in problem.fix


def test_a_path_for_a_dataset_must_have_been_uploaded(registry: Registry) -> None:
    text = SFT.replace("file_1", "math.jsonl")
    (problem,) = problems(text, registry)
    assert problem.where == "job.toml:3 [job].data"
    assert "was not uploaded" in problem.what
    checked = resolve_job(read_toml(text, name="job.toml"), overrides=Overrides(), registry=registry, uploaded=False)
    assert checked.job.training_file == "math.jsonl"  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("url", ["127.0.0.1:8001", "ftp://x/", "http://", "http://x:99999", "http://[::1", ""])
def test_a_task_url_that_is_no_address_is_refused(url: str, registry: Registry) -> None:
    (problem,) = problems(RL.replace("http://127.0.0.1:8001", url), registry)
    assert problem.where == "job.toml:2 [services].task_url"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("batch_size = 0", "at least 1"),
        ("batch_size = 2.5", "a whole number"),
        ("batch_size = true", "a whole number"),
        ("group_size = 1", "at least 2"),
        ('learning_rate = "1e-4"', "a number"),
        ("learning_rate = 0", "more than 0"),
        ("learning_rate = 5", "at most 1"),
        ("betas = [0.9]", "a list of at least 2"),
        ("betas = [0.9, 1.0]", "less than 1"),
        ('lr_scheduler = "cosin"', "'constant', 'linear' or 'cosine'"),
        ("advantage_std = 1", "true or false"),
        ("lora = 16", "a table"),
    ],
)
def test_a_bad_value_says_what_was_expected(line: str, expected: str, registry: Registry) -> None:
    (problem,) = problems(RL + line + "\n", registry)
    assert problem.where.startswith("job.toml:9 [training]")
    assert expected in problem.expected


@pytest.mark.parametrize("seeds", ['"9-1"', "[]", "[1, 1]", "[-1]", "{count = 0}", '"x"', "7", '"0-9007199254740992"'])
def test_seeds_that_make_no_set_are_refused(seeds: str, registry: Registry) -> None:
    (problem,) = problems(RL + f"[data]\nseeds = {seeds}\n", registry)
    assert problem.where.startswith("job.toml:10 [data")
    assert problem.expected


def test_a_file_of_no_kind_says_which_kinds_there_are(registry: Registry) -> None:
    (problem,) = problems("x = 1\n", registry)
    assert problem.where == "job.toml"
    assert "[hyperparameters] for SFT" in problem.expected


def test_a_missing_required_key_says_what_it_is(registry: Registry) -> None:
    (problem,) = problems(RL + '[algorithm]\ntype = "online"\nmethod = "policy_gradient"\n', registry)
    assert problem.where == "job.toml:9 [algorithm].variety"
    assert "gspo" in problem.expected


def test_a_wrong_value_does_not_hide_what_else_is_wrong(registry: Registry) -> None:
    text = RL.replace("tiny-qwen3", "gpt-5").replace("iterations_per_epoch = 3", 'group_size = "many"')
    found = problems(text + "batch_size = 0\nbetas = [0.9, 2]\n", registry)
    assert [p.where.partition(" ")[2] for p in found] == [
        "[model].base",
        "[training].group_size",
        "[training].batch_size",
        "[training].betas[1]",
    ]


def test_what_a_wrong_value_causes_is_not_reported_too(registry: Registry) -> None:
    (problem,) = problems(SFT.replace('"file_1"', "7"), registry)
    assert (problem.where, problem.expected) == ("job.toml:3 [job].data", "text in quotes")
    (problem,) = problems(RL.replace('"tiny-qwen3"', "7"), registry)
    assert problem.where == "job.toml:4 [model].base"
    algorithm = '[algorithm]\ntype = "online"\nmethod = "policy_gradient"\nvariety = "ppo"\n'
    (problem,) = problems(RL + algorithm, registry)
    assert problem.where == "job.toml:12 [algorithm].variety"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[topology]\ngpus_for_vllm = 0\n", "job.toml:10 [topology].gpus_for_vllm"),
        ("[compute]\ngpu_count = 2\n[topology]\ngpus_for_vllm = 2\ngpus_for_training = 1\n", "job.toml:11 [topology]"),
        ("[rubric.weights]\nenv = 0.0\n", "job.toml:9 [rubric.weights]"),
        ('[algorithm]\ntype = "online"\nmethod = "sft"\nvariety = "gspo"\n', "job.toml:11 [algorithm].method"),
        ("kl_beta = 0.01\n", "job.toml:9 [training].kl_beta"),
        ("kl_beta = 0.01\n[reference]\nplacement = 'none'\n", "job.toml:9 [training].kl_beta"),
    ],
)
def test_what_could_not_run_anywhere_is_refused(text: str, place: str, registry: Registry) -> None:
    (problem,) = problems(RL + text, registry)
    assert problem.where == place


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[prompt_learning]\nx = 1\n", "no prompts are optimised here"),
        ("[build-system]\nrequires = []\n", "a Python project"),
        ("[eval]\nmodel = 'x'\n[tracing_v2]\nenabled = true\n", "settings of a script"),
    ],
)
def test_a_file_that_is_no_job_is_told_what_it_is(text: str, what: str, registry: Registry) -> None:
    (problem,) = problems(text, registry)
    assert what in problem.what


def test_a_filter_is_checked_and_sent_to_where_it_runs(registry: Registry) -> None:
    (problem,) = problems('[filter]\ndb = "traces.db"\noutput = "rows.jsonl"\n', registry)
    assert "synthctl filter" in problem.fix
    wrong = problems('[filter]\noutput = "rows.csv"\nmin_official_score = "high"\nlimt = 3\n', registry)
    assert {p.where for p in wrong} == {
        "job.toml:1 [filter].db",
        "job.toml:2 [filter].output",
        "job.toml:3 [filter].min_official_score",
        "job.toml:4 [filter].limt",
    }


def test_contradictory_modes_are_an_error_that_names_both(registry: Registry) -> None:
    text = SFT + 'train_kind = "fft"\n[training]\nmode = "lora"\n'
    (problem,) = problems(text, registry)
    assert problem.where == "job.toml:6 [hyperparameters].train_kind"
    assert "[training].mode" in problem.what


def test_keys_of_the_contract_that_do_nothing_yet_are_warned_about(registry: Registry) -> None:
    text = RL + "log_interval = 5\n[vllm]\nmax_model_len = 2048\n[reference]\nplacement = 'none'\n"
    checked = resolve_job(read_toml(text, name="job.toml"), overrides=Overrides(), registry=registry)
    assert [w.split(" has no effect")[0] for w in checked.warnings] == [
        "job.toml:9 [training].log_interval",
        "job.toml:11 [vllm].max_model_len",
    ]


def test_a_job_that_came_as_json_is_held_to_the_same_rules() -> None:
    with pytest.raises(UserError) as caught:
        load_job_data({"rollout": {"env_name": 3}, "training": {"iterations_per_epoch": 1}}, name="POST /api/rl/jobs")
    assert caught.value.problems[0].where == "POST /api/rl/jobs [rollout].env_name"


def test_other_keys_of_a_payload_are_warned_about_and_typos_refused(registry: Registry) -> None:
    payload: dict[str, Any] = {
        "services": {"task_url": "http://127.0.0.1:8001"},
        "model": {"base": "tiny-qwen3"},
        "training": {"iterations_per_epoch": 1, "max_images_per_decade": 2},
        "billing": {"team": "a"},
    }
    document = read_data(payload, name="POST /api/rl/jobs")
    checked = resolve_job(document, overrides=Overrides(), registry=registry, kind="rl")
    assert checked.warnings == [
        "POST /api/rl/jobs [training].max_images_per_decade has no effect: it is no key of [training]",
        "POST /api/rl/jobs [billing] has no effect: it is no key of a job",
    ]
    payload["training"]["lerning_rate"] = 1e-4
    with pytest.raises(UserError, match="did you mean 'learning_rate'"):
        resolve_job(read_data(payload, name="x"), overrides=Overrides(), registry=registry, kind="rl")


def test_the_kind_is_read_from_the_algorithm_before_anything_else() -> None:
    algorithm = '[algorithm]\ntype = "offline"\nmethod = "sft"\nvariety = "fft"\n'
    assert (
        load_job(algorithm + '[services]\ntask_url = "http://x"\n'.replace("services", "tags"), name="x").kind == "sft"
    )
    assert load_job(RL, name="x").kind == "rl"
    assert load_job(SFT, name="x").kind == "sft"
    assert load_job('[eval]\napp_id = "math"\n', name="x").kind == "eval"
    assert load_job('app_id = "math"\nseeds = "0-4"\n', name="x").kind == "eval"
    assert load_job('task_app_url = "http://x"\nnum_episodes = 3\n[rollout]\n', name="x").kind == "eval"
    assert load_job('type = "rl"\n[model]\nbase = "x"\n', name="x").kind == "rl"
    assert load_job('[filter]\ndb = "x"\n', name="x").kind == "filter"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        # What is verified would be at `/?x=/health`, what is played at `/rollout?x=`, or the other way round.
        ("http://127.0.0.1:8001/?x=", "it has a query"),
        ("http://127.0.0.1:8001/#", "it has a fragment"),
        ("http://app.example@127.0.0.1:8001", "it has a user's name"),
        ("http://app.example/\\u001b[2J", "characters that a URL may not have"),
    ],
)
def test_a_task_apps_address_holds_nothing_but_host_port_and_path(url: str, said: str, registry: Registry) -> None:
    (problem,) = problems(RL.replace("http://127.0.0.1:8001", url), registry)
    assert said in problem.what
    assert problem.where == "job.toml:2 [services].task_url"
