"""Keys of the published contract that are read and checked, and have no effect: one table, one warning each."""

from __future__ import annotations

from typing import Any, NamedTuple

from synth.jobs.parse.toml import Document, Path

_MACHINES = "the cluster has the machines that it has"
_OPERATOR = "inference has the GPUs that the cluster's operator gives it"
_OF_INFERENCE = "gpus_for_vllm gpus_for_ref tensor_parallel"
_ENGINE = "the cluster's operator sets the engine up"
_HERE = "the job's own model is served, by this platform"
_ADDRESS = "the platform gives each rollout an address of its own"
_BLOBS = "weights travel through the blob store"
_MINIBATCHES = "minibatches and micro_batch_tokens decide this"
_REFERENCE = "the reference model lives in the trainer, it is no server"
_FP16 = "gradients of float16 need a scaling that this trainer has not; bf16 is what GPUs train in"
_NOT_TRAINED = "nothing is trained"
_CLIENT = "it is for the client alone"


class UnsupportedKey(NamedTuple):
    """The reason why a key has no effect, and the values for which no warning is needed, as they change nothing."""

    reason: str
    harmless: tuple[Any, ...] = ()


def _each(table: str, keys: str, unsupported: UnsupportedKey) -> dict[str, UnsupportedKey]:
    return {f"{table}.{key}" if table else key: unsupported for key in keys.split()}


UNSUPPORTED: dict[str, dict[str, UnsupportedKey]] = {
    "rl": {
        **_each("compute", "gpu_type gpu_count nodes", UnsupportedKey(_MACHINES)),
        **_each("topology", _OF_INFERENCE, UnsupportedKey(_OPERATOR)),
        **_each("compute.topology", _OF_INFERENCE, UnsupportedKey(_OPERATOR)),
        **_each("vllm", "tensor_parallel_size max_model_len", UnsupportedKey(_ENGINE)),
        "vllm.limit_mm_per_prompt.video": UnsupportedKey("no model is shown videos", (0,)),
        **_each("reference", "port tp health_max_wait_s health_interval_ms", UnsupportedKey(_REFERENCE)),
        "policy.inference_url": UnsupportedKey(_ADDRESS),
        "rollout.policy_config.provider": UnsupportedKey(_HERE, ("synth",)),
        "rollout.policy_config.inference_url": UnsupportedKey(_ADDRESS),
        **_each(
            "training", "gradient_accumulation_steps max_accumulated_minibatch", UnsupportedKey(_MINIBATCHES, (1,))
        ),
        "training.log_interval": UnsupportedKey("every iteration is an event", (1,)),
        "training.weight_sync.mode": UnsupportedKey(_BLOBS),
        "training.weight_sync.direct": UnsupportedKey(_BLOBS, (False,)),
        "data.episodes_per_iteration": UnsupportedKey("an iteration is batch_size x group_size rollouts"),
        "data.evaluation_episodes": UnsupportedKey("[evaluation] chooses the rollouts of evaluations"),
        "smoke": UnsupportedKey(_CLIENT),
    },
    "sft": {
        **_each("compute", "gpu_type topology", UnsupportedKey(_MACHINES)),
        "data.topology": UnsupportedKey(_MACHINES, ({},)),
        "job.poll_seconds": UnsupportedKey("jobs are followed, not polled"),
        "job.description": UnsupportedKey("it is a note for readers; [tags] stay with the job"),
        "policy": UnsupportedKey("it is for RL"),
        "metadata": UnsupportedKey("it is the client's own record of the job"),
        "model_config.max_model_len": UnsupportedKey("[hyperparameters] sequence_length decides"),
        "hyperparameters.parallelism.fp16": UnsupportedKey(_FP16, (False,)),
    },
    "eval": {
        "type": UnsupportedKey("a model is evaluated the same, however it was trained"),
        "task": UnsupportedKey("env_config is passed to the environment"),
        **_each("model", "trainer_mode freeze_vision_tower", UnsupportedKey(_NOT_TRAINED)),
        **_each("rollout", "episodes_per_batch batches_per_step trace_rate", UnsupportedKey(_NOT_TRAINED)),
        "rollout.group_timeout_s": UnsupportedKey("each rollout of an evaluation is waited for, until it is given up"),
        "eval.provider": UnsupportedKey(_HERE, ("synth",)),
        "eval.inference_url": UnsupportedKey(_ADDRESS),
        "eval.env_file": UnsupportedKey(_CLIENT),
        **{
            f"{table}.{key}": unsupported
            for table in ("eval.policy_config", "eval.policy", "policy", "rollout.policy_config")
            for key, unsupported in (
                ("provider", UnsupportedKey(_HERE, ("synth",))),
                ("inference_url", UnsupportedKey(_ADDRESS)),
            )
        },
    },
    "filter": {},
}


def unsupported_keys(document: Document, kind: str) -> list[str]:
    """Return a sentence for each table and reason about keys that have no effect on this kind of job."""
    flat = kind == "eval" and "eval" not in document.data
    groups: dict[tuple[Path, str], list[Path]] = {}
    for dotted, unsupported in UNSUPPORTED[kind].items():
        path: Path = tuple(dotted.removeprefix("eval.").split(".") if flat else dotted.split("."))
        value = document.get(path)
        if value is None or any(_same(value, harmless) for harmless in unsupported.harmless):
            continue
        group = groups.setdefault((path[:-1], unsupported.reason), [])
        if path not in group:
            group.append(path)
    sentences: list[str] = []
    for (table, reason), paths in groups.items():
        first, *others = sorted(paths, key=lambda p: document.lines.get(p, 0))
        # Tables stand apart in the file, so each is named with its own place.
        if not table:
            sentences += [f"{document.where(p)} has no effect: {reason}" for p in (first, *others)]
            continue
        names = ", ".join([document.where(first), *(str(p[-1]) for p in others)])
        sentences.append(f"{names} {'have' if others else 'has'} no effect: {reason}")
    return sentences


def _same(value: Any, harmless: Any) -> bool:
    return type(value) is type(harmless) and value == harmless
