"""Predicted against measured: the peak of training in bytes, over families and modes, on a CPU.

    .venv/bin/python -m benchmarks.memory [--only NAME] [--device cuda]

Predicted: the result of `synthctl config explain`, by `synth.jobs.memory` from the job and its model's config.json.
Measured: the most bytes that torch's allocator had given out at one time, over two steps of the trainer's own, in which
each optimizer step has two micro-batches. The models have random weights: bytes do not depend on them.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from synth.jobs.memory import TrainingMemory, training_memory
from synth.jobs.parse.toml import read_toml
from synth.jobs.resolve.job import Overrides, resolve_job
from synth.methods.base import CPU_FORWARDS, TrainingJob
from synth.methods.rl import RlJob
from synth.methods.sft import SftJob
from synth.models import Registry
from synth.models.config_shape import read_shape
from synth.trainer.learner import rng
from synth.trainer.learner.data.packing import Sequences
from synth.trainer.learner.data.sft_dataset import SftDataset
from synth.trainer.learner.methods.sft import SftTrainer
from synth.trainer.learner.model.policy import Policy, load_policy
from synth.trainer.learner.model.reference import load_reference
from synth.trainer.learner.rl import RlTrainer
from synth.trainer.owner.learner_config import machine_of
from synth.trainer.settings import TrainerSettings
from synth.trajectories import BatchMeta, Branch, RolloutBatch, RolloutMeta
from synth.weights import nf4

_SIZES: dict[str, Any] = {
    "vocab_size": 4096,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
}
_WINDOWS = {"layer_types": ["sliding_attention", "full_attention"] * 3, "sliding_window": 128}
_EXPERTS = {"intermediate_size": 192, "num_experts_per_tok": 2}
#: The class in transformers of each family, and what its config has beside the common sizes.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen3": ("Qwen3", {}),
    "Qwen2.5": ("Qwen2", {}),
    "Llama 3": ("Llama", {"tie_word_embeddings": False}),
    "Mistral": ("Mistral", {"tie_word_embeddings": False, "sliding_window": None}),
    "Gemma 3": ("Gemma3", _WINDOWS),
    "Phi-4": ("Phi3", {"tie_word_embeddings": False}),
    "OLMo 3": ("Olmo3", _WINDOWS | {"tie_word_embeddings": False}),
    "gpt-oss": ("GptOss", _WINDOWS | _EXPERTS | {"num_local_experts": 8, "tie_word_embeddings": False}),
    "Qwen3-MoE": ("Qwen3Moe", _EXPERTS | {"num_experts": 8, "moe_intermediate_size": 192}),
}

_RL = """\
[services]
task_url = "http://127.0.0.1:8001"
[model]
base = "model"
trainer_mode = "{mode}"
[training]
iterations_per_epoch = 2
minibatches = 1
micro_batch_tokens = {tokens}
correction.gates = false
{keys}
{tables}
"""
_SFT = """\
[algorithm]
type = "offline"
method = "sft"
variety = "{variety}"
[job]
model = "model"
data = "file_1"
[hyperparameters]
total_steps = 2
global_batch = {rows}
sequence_length = {length}
micro_batch_tokens = {tokens}
{keys}
{tables}
"""
_ADAPTER = "[lora]\nr = 8\nalpha = 16\ndropout = 0.0\n"


@dataclass(frozen=True)
class Case:
    """A model and a mode. keys: of the job file. length: tokens of a sequence; tokens: of a forward."""

    family: str
    kind: str = "rl"
    mode: str = "full"
    dtype: str = "bf16"
    keys: tuple[str, ...] = ()
    tables: str = ""
    tokens: int = 512
    length: int = 256
    sizes: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def name(self) -> str:
        more = "".join(f", {key}" for key in self.keys) + (", reference" if "reference" in self.tables else "")
        return f"{self.family} {self.kind} {self.mode} {self.dtype}{more}"


_AGAIN, _SGD8, _OFFLOAD = "activation_checkpointing = true", 'optimizer = "adamw_8bit"', "optimizer_offload = true"
_WIDE = {"vocab_size": 16_384, "hidden_size": 512, "intermediate_size": 1536}
_REFERENCE = '[reference]\nplacement = "shared"\n'
CASES = (
    Case("Qwen3"),
    Case("Qwen3", dtype="fp32"),
    Case("Qwen3", mode="lora"),
    Case("Qwen3", mode="qlora"),
    Case("Qwen3", keys=(_AGAIN,)),
    Case("Qwen3", mode="lora", keys=(_AGAIN,)),
    Case("Qwen3", keys=(_SGD8,), sizes=_WIDE),
    Case("Qwen3", keys=(_OFFLOAD,), sizes=_WIDE),
    Case("Qwen3", keys=(_AGAIN, _SGD8), sizes=_WIDE),
    Case("Qwen3", keys=("kl_beta = 0.1",), tables=_REFERENCE),
    Case("Qwen3", kind="sft"),
    Case("Qwen3", kind="sft", mode="lora"),
    Case("Qwen2.5", kind="sft"),
    Case("Llama 3"),
    Case("Llama 3", kind="sft", mode="qlora"),
    Case("Mistral", mode="lora"),
    Case("Gemma 3"),
    Case("Gemma 3", kind="sft", mode="lora"),
    Case("Phi-4", kind="sft"),
    Case("OLMo 3", mode="lora"),
    Case("Qwen3-MoE"),
    Case("Qwen3-MoE", mode="lora"),
    Case("gpt-oss"),
    Case("gpt-oss", kind="sft", mode="lora"),
)


@dataclass(frozen=True)
class Compared:
    """Bytes: the predicted ones, and the measured peak."""

    predicted: TrainingMemory
    measured: int

    @property
    def ratio(self) -> float:
        return self.predicted.total / self.measured


def compare(case: Case, folder: Path, *, device: str = "cpu") -> Compared:
    """Train one case and measure it. folder: an empty one, for its model."""
    write_model(folder / "model", case)
    job = _job(case, folder, forwards=CPU_FORWARDS if device == "cpu" else 1)
    shape = read_shape(folder / "model")
    assert shape is not None
    settings = TrainerSettings(device=device, dtype=case.dtype, deterministic=False, threads=1)  # pyright: ignore[reportArgumentType]
    predicted = training_memory(
        job,
        shape,
        dtype=case.dtype,  # pyright: ignore[reportArgumentType]
        device=device,  # pyright: ignore[reportArgumentType]
        longest=case.length,
    )
    rows = 2 * job.micro_batch_tokens // case.length
    machine = machine_of(job, settings)
    rng.seed_everything(0, deterministic=False)
    source = folder / "model"
    if job.mode == "qlora":
        nf4.write_rounded_model(source, folder / "rounded")
        source = folder / "rounded"
    policy = load_policy(source, job, machine, dropout=False)
    # The model has no tokenizer, and nothing of its memory is in what ends a turn.
    policy.__dict__["eos_ids"] = {2}
    if isinstance(job, RlJob):
        reference = load_reference(policy, job)
        trainer: Any = RlTrainer(policy, job, reference=reference)
        copies = [policy.model] + ([reference.policy.model] if reference is not None and not job.lora else [])  # pyright: ignore
    else:
        assert isinstance(job, SftJob)
        trainer = SftTrainer(policy, job, _rows(case, rows))
        copies = [policy.model]

    def train() -> None:
        for step in (1, 2):
            trainer.step(*([_batch(case, step, rows)] if isinstance(job, RlJob) else []))

    loaded = 0 if device == "cuda" else sum(_held(model) for model in copies)
    return Compared(predicted, loaded + _peak(train, policy))


def write_model(path: Path, case: Case) -> None:
    """Write a model of a case's family and size, with random weights, without a tokenizer."""
    name, sizes = FAMILIES[case.family]
    rope = {"rope_type": "default", "rope_theta": 1e4}
    by_layer = {"sliding_attention": rope, "full_attention": rope}
    kind = getattr(transformers, "Gemma3TextConfig" if name == "Gemma3" else f"{name}Config")
    more = {"rope_parameters": by_layer if name == "Gemma3" else rope}
    config = kind(**{**_SIZES, **more, **sizes, **case.sizes})
    torch.manual_seed(0)
    getattr(transformers, f"{name}ForCausalLM")(config).save_pretrained(path)


def _job(case: Case, models: Path, *, forwards: int) -> TrainingJob:
    rows, tokens = 2 * case.tokens // case.length * forwards, case.tokens * forwards
    tables = case.tables + ("" if case.mode == "full" else _ADAPTER)
    keys = "\n".join(case.keys)
    if case.kind == "rl":
        text = _RL.format(mode=case.mode, tokens=tokens, keys=keys, tables=tables)
    else:
        variety = "fft" if case.mode == "full" else case.mode
        text = _SFT.format(variety=variety, rows=rows, length=case.length, tokens=tokens, keys=keys, tables=tables)
    job = resolve_job(read_toml(text, name="job.toml"), overrides=Overrides(), registry=Registry(models)).job
    assert isinstance(job, TrainingJob)
    return job


def _rows(case: Case, count: int) -> SftDataset:
    tokens = np.random.default_rng(0).integers(5, 300, count * case.length).astype(np.int32)
    sequences = Sequences(tokens, np.ones(len(tokens), np.float32), np.arange(count + 1) * case.length)
    return SftDataset(sequences, {"truncated_rows": 0.0, "truncated_tokens": 0.0, "untrained_rows": 0.0})


def _batch(case: Case, iteration: int, count: int) -> RolloutBatch:
    prompt = 8
    drawn = np.random.default_rng(iteration)
    mask = np.arange(case.length) >= prompt
    branches = [
        Branch(
            tokens=drawn.integers(5, 300, case.length).astype(np.int32),
            loss_mask=mask,
            logprobs=np.where(mask, -np.log(4096), 0.0).astype(np.float32),
            versions=np.where(mask, iteration - 1, -1).astype(np.int32),
            calls=np.where(mask, 0, -1).astype(np.int32),
        )
        for _ in range(count)
    ]
    rollouts = [RolloutMeta(rollout_id=f"r{i}", seed=i, group=i // 4, reward=float(i % 2)) for i in range(count)]
    meta = BatchMeta(
        job_id="job", iteration=iteration, temperature=1.0, rollouts=rollouts, groups_kept=count // 4, groups_dropped=0
    )
    return RolloutBatch.build(branches, [float(i % 2) - 0.5 for i in range(count)], list(range(count)), meta)


def _held(model: Any) -> int:
    """Return the bytes of a model's tensors, each storage once."""
    tensors = (*model.parameters(), *model.buffers())
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def _peak(train: Any, policy: Policy) -> int:
    """Return the peak of allocated bytes; on a CPU beyond the bytes that were allocated before."""
    if policy.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        train()
        return torch.cuda.max_memory_allocated()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        train()
    events: Any = profile.profiler.kineto_results.events()  # pyright: ignore[reportOptionalMemberAccess]
    current = most = 0
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        current += event.nbytes()
        most = max(most, current)
    return most


def main() -> None:
    """Print the table; a case that is further off than 15 % is marked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    print("| model, job | predicted, MiB | measured, MiB | ratio |\n|---|--:|--:|--:|")
    for case in CASES:
        if options.only not in case.name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            compared = compare(case, Path(folder), device=options.device)
        off = "" if abs(compared.ratio - 1) <= 0.15 else " !"
        sizes = f"{compared.predicted.total / 2**20:.1f} | {compared.measured / 2**20:.1f} | {compared.ratio:.2f}{off}"
        print(f"| {case.name} | {sizes} |", flush=True)


if __name__ == "__main__":
    main()
