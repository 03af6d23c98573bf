"""The memory of a job, for `config explain`: what each rank of its training holds, what serving does, and its blobs."""

from __future__ import annotations

from pathlib import Path

from synth.jobs.memory import TrainingMemory
from synth.jobs.plan import JobPlan, TrainerDevice, plan_job
from synth.methods.job import Job
from synth.models.config_shape import read_shape
from synth.models.hosted_shapes import known_shape
from synth.models.memory import in_words

_MEANING = {
    "weights": "trained ones in float32, frozen ones as they are computed",
    "casts": "copies of float32 weights in bfloat16, or of 4-bit ones",
    "gathered": "of the other ranks' shards, and of a block's gradient",
    "gradients": "of the trained weights",
    "moments": "of the optimizer",
    "reference": "a copy of the source model",
    "activations": "kept by a forward for its backward",
    "image_activations": "at most: every token of a forward is of an image",
    "logits": "of one chunk, and the gradient of a trained head",
}


def job_memory(job: Job, models_dir: Path) -> JobPlan | None:
    """Return the memory plan of a training job. None for an evaluation, and for a model of unknown size.

    models_dir: the folder with the config.json of a local model; a hosted base needs none. The plan assumes GPUs in
    bfloat16, as many as the job requests, or one.
    """
    shape = read_shape(models_dir / job.base_model) or known_shape(job.base_model)
    return None if shape is None or job.training is None else plan_job(job.training, shape, TrainerDevice())


def memory_rows(plan: JobPlan) -> list[tuple[str, str, str]]:
    """Return the plan as a table: what, how much, and of what. The largest part of the training comes first."""
    where = "one GPU" if plan.ranks == 1 else f"each of {plan.ranks} GPUs"
    most = "at most; " if plan.training.image_activations else ""
    rows = [(f"training, on {where}", in_words(plan.total), f"{most}in {plan.dtype}")]
    rows += [(f"  {name.replace('_', ' ')}", in_words(load), _MEANING[name]) for load, name in _largest(plan.training)]
    if plan.training.offloaded:
        rows.append(("  in main memory", in_words(plan.training.offloaded), "moments that are offloaded"))
    serving, blobs = plan.serving, plan.blobs
    rows += [
        ("serving", in_words(serving.weights + serving.kv_cache), "without the logits of a step"),
        ("  weights", in_words(serving.weights), "of the base"),
        ("  KV cache, a token", in_words(serving.kv_cache_per_token), "of prompt or reply"),
    ]
    if serving.rollouts:
        load = f"{serving.rollouts} rollouts at once, {serving.sampled_tokens:,} sampled tokens each; prompts on top"
        rows.append(("  KV cache", in_words(serving.kv_cache), load))
    if blobs.iteration:
        rows += [
            ("blobs, an iteration", in_words(blobs.iteration), "with a checkpoint"),
            ("  batch", in_words(blobs.batch), "at most, without prompts"),
        ]
    else:
        rows.append(("blobs", in_words(blobs.checkpoint + blobs.published), "a checkpoint and the finished model"))
    return [
        *rows,
        ("  published weights", in_words(blobs.published), "to serve"),
        ("  checkpoint", in_words(blobs.checkpoint), "master weights and moments; copied to main memory to be written"),
        ("turns at one GPU", in_words(plan.training.moved), "of training wait in main memory, or the served weights"),
    ]


def describe_memory(plan: JobPlan) -> list[str]:
    """Return the plan as sentences."""
    of = ", ".join(f"{name.replace('_', ' ')} {in_words(held)}" for held, name in _largest(plan.training))
    most = "at most " if plan.training.image_activations else ""
    where = "one GPU" if plan.ranks == 1 else f"each of {plan.ranks} GPUs"
    serving, blobs = plan.serving, plan.blobs
    offloaded = (
        f"; {in_words(plan.training.offloaded)} of moments are in main memory" if plan.training.offloaded else ""
    )
    kv_cache = f", {in_words(serving.kv_cache)} for {serving.rollouts} rollouts at once" if serving.rollouts else ""
    often = "an iteration" if blobs.iteration else "at the end"
    return [
        f"training on {where} in {plan.dtype} holds {most}{in_words(plan.total)}: {of}{offloaded}",
        *(["image activations assume a forward in which every token belongs to an image"] if most else []),
        f"serving its base holds {in_words(serving.weights)} of weights, and {in_words(serving.kv_cache_per_token)} a "
        f"token of its KV cache{kv_cache}",
        f"{in_words(blobs.published)} of weights are published {often}, a checkpoint is {in_words(blobs.checkpoint)}",
        "a GPU that is shared by turns holds one of the two; what waits is in main memory, "
        f"{in_words(plan.training.moved)} of training or the served weights",
    ]


def _largest(training: TrainingMemory) -> list[tuple[int, str]]:
    """Return the parts of a training that are there, the largest first."""
    return sorted(((held, name) for name, held in training.parts.items() if held), reverse=True)
