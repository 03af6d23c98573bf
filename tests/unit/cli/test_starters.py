"""`config init`: every starter file makes a job, and its values fit the size of its model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from synth.cli.jobs.files import Flags, validate_text
from synth.cli.jobs.starter import ModelFacts, model_facts, starter
from synth.client.submission import LenientRegistry
from synth.methods.base import TrainingJob
from synth.methods.job import Job
from synth.methods.rl import RlJob
from synth.methods.sft import SftJob

TOY = ModelFacts("tiny", trained=False, parameters=1_000_000, context=256)
TRAINED_TOY = ModelFacts("fft:tiny:job_0123456789abcdef", trained=True, parameters=1_000_000, context=256)
SMALL = ModelFacts("Qwen/Qwen3-0.6B", trained=False, parameters=600_000_000, context=None)
LARGE = ModelFacts("Qwen/Qwen3-14B", trained=False, parameters=15_000_000_000, context=40_960)
UNKNOWN = ModelFacts("my-model", trained=False, parameters=None, context=None)
KINDS = ("sft", "dpo", "rl", "eval")


def job_of(text: str, rows: Path) -> Job:
    rows.write_text('{"messages": []}\n')
    _, found = validate_text(text, name="job.toml", flags=Flags(dataset=rows), registry=LenientRegistry())
    assert (found.problems, found.warnings) == ([], [])
    assert found.job is not None
    return found.job


@pytest.mark.parametrize("model", [TOY, TRAINED_TOY, SMALL, LARGE, UNKNOWN], ids=lambda model: model.id)
@pytest.mark.parametrize("kind", KINDS)
def test_a_starter_file_is_a_job_of_its_model_without_a_warning(kind: str, model: ModelFacts, tmp_path: Path):
    job = job_of(starter(kind, model, vision=False), tmp_path / "rows.jsonl")
    assert job.model == model.id


def test_a_toy_trains_every_weight_in_large_steps_within_its_context(tmp_path: Path):
    sft = job_of(starter("sft", TOY, vision=False), tmp_path / "rows.jsonl")
    assert isinstance(sft, SftJob)
    assert (sft.mode, sft.steps, sft.lr, sft.sequence_length) == ("full", 1000, 5e-3, 256)
    rl = job_of(starter("rl", TRAINED_TOY, vision=False), tmp_path / "rows.jsonl")
    assert isinstance(rl, RlJob)
    assert (rl.mode, rl.iterations, rl.lr, rl.async_level) == ("full", 30, 2e-4, 0)
    assert rl.rollout.sampling.max_tokens == 128


def test_a_large_model_learns_in_smaller_steps_than_a_small_one(tmp_path: Path):
    for kind in ("sft", "dpo", "rl"):
        small, large = (job_of(starter(kind, m, vision=False), tmp_path / "rows.jsonl") for m in (SMALL, LARGE))
        assert isinstance(small, TrainingJob)
        assert isinstance(large, TrainingJob)
        assert small.mode == large.mode == "lora"
        assert large.lr <= small.lr / 2


@pytest.mark.parametrize("kind", KINDS)
def test_comments_keep_their_column(kind: str):
    for line in starter(kind, TOY, vision=False).splitlines():
        code, mark, _ = line.partition(" # ")
        assert not mark or line.startswith("#") or len(code) >= 35, line


def test_the_size_is_that_of_the_folder_or_of_the_hosted_id(tmp_path: Path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    config = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 4, "vocab_size": 512, "max_position_embeddings": 300}
    (folder / "config.json").write_text(json.dumps(config))
    facts = [
        model_facts("tiny", tmp_path),
        model_facts("fft:tiny:job_0123456789abcdef", tmp_path),
        model_facts("Qwen/Qwen3-0.6B", tmp_path, runs_as="tiny"),
    ]
    assert [(f.trained, f.context) for f in facts] == [(False, 300), (True, 300), (False, 300)]
    assert len({f.parameters for f in facts}) == 1
    assert (facts[0].parameters or 0) < 200_000
    hosted = model_facts("Qwen/Qwen3-32B", tmp_path).parameters
    assert hosted is not None
    assert 32e9 < hosted < 34e9
    assert model_facts("nobody-knows-it", tmp_path).parameters is None
