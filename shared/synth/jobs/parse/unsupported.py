"""Keys of the published contract that are read and checked, and have no effect: one table, one warning each."""

from __future__ import annotations

from typing import Any, NamedTuple

from synth.jobs.parse.toml import Document, Path

_MACHINES = "the cluster has the machines that it has"
_OPERATOR = "inference has the GPUs that the cluster's operator gives it"
_OF_INFERENCE = "gpus_for_vllm gpus_for_ref tensor_parallel"
_ENGINE = "the cluster's operator sets the engine up"
_STEPS = "each rollout earns one reward, that of its whole episode"
_JUDGE = "judges are not asked, the environment's reward stands alone"
_TRACES = "the inference service records every call, whatever is asked for"
_HERE = "the job's own model is served, by this platform"
_ADDRESS = "the platform gives each rollout an address of its own"
_SYNC = "weights are synced after every iteration"
_BLOBS = "weights travel through the blob store"
_MINIBATCHES = "minibatches and micro_batch_tokens decide this"
_REFERENCE = "the reference model lives in the trainer, it is no server"
_OWN_REWARD = "the task app says what a reply earns"
_FP16 = "gradients of float16 need a scaling that this trainer has not; bf16 is what GPUs train in"
_CLIENT = "it is for the client alone"
_JUDGE_OFF: tuple[Path, Any] = (("judge", "enabled"), False)
_RUBRIC_OFF: tuple[Path, Any] = (("rubric", "enabled"), False)
_STEPS_OFF: tuple[Path, Any] = (("training", "step_rewards_enabled"), False)


class UnsupportedKey(NamedTuple):
    """Why a key has no effect, and the values with which nothing is lost, so that nothing is said.

    unless: another key, and the value of it that already says that this one has no effect.
    """

    reason: str
    harmless: tuple[Any, ...] = ()
    unless: tuple[Path, Any] | None = None


def _each(table: str, keys: str, unsupported: UnsupportedKey) -> dict[str, UnsupportedKey]:
    return {f"{table}.{key}" if table else key: unsupported for key in keys.split()}


_STEP_REWARDS = "step_rewards_indicator_lambda step_rewards_beta step_rewards_strategy event_rewards_kind"

UNSUPPORTED: dict[str, dict[str, UnsupportedKey]] = {
    "rl": {
        "services.judge_url": UnsupportedKey(_JUDGE),
        **_each("compute", "gpu_type gpu_count nodes", UnsupportedKey(_MACHINES)),
        **_each("topology", _OF_INFERENCE, UnsupportedKey(_OPERATOR)),
        **_each("compute.topology", _OF_INFERENCE, UnsupportedKey(_OPERATOR)),
        **_each("vllm", "tensor_parallel_size max_model_len", UnsupportedKey(_ENGINE)),
        "vllm.limit_mm_per_prompt.video": UnsupportedKey("no model is shown videos", (0,)),
        **_each("reference", "port tp health_max_wait_s health_interval_ms", UnsupportedKey(_REFERENCE)),
        "policy.inference_url": UnsupportedKey(_ADDRESS),
        "rollout.batches_per_step": UnsupportedKey("an iteration is one batch", (1,)),
        "rollout.policy_config.provider": UnsupportedKey(_HERE, ("synth",)),
        "rollout.policy_config.inference_url": UnsupportedKey(_ADDRESS),
        "rollout.task_app_origin_rewards_only": UnsupportedKey(_JUDGE, (True,)),
        "rollout.rubric_rewards_only": UnsupportedKey(_JUDGE, (False,)),
        **_each(
            "training", "gradient_accumulation_steps max_accumulated_minibatch", UnsupportedKey(_MINIBATCHES, (1,))
        ),
        "training.log_interval": UnsupportedKey("every iteration is an event", (1,)),
        "training.weight_sync_interval": UnsupportedKey(_SYNC, (1,)),
        "training.weight_sync.mode": UnsupportedKey(_BLOBS),
        "training.weight_sync.direct": UnsupportedKey(_BLOBS, (False,)),
        "training.weight_sync.weight_sync_interval": UnsupportedKey(_SYNC, (1,)),
        "training.step_rewards_enabled": UnsupportedKey(_STEPS, (False,)),
        "training.step_rewards_mode": UnsupportedKey(_STEPS, ("off",), _STEPS_OFF),
        **_each("training", _STEP_REWARDS, UnsupportedKey(_STEPS, (), _STEPS_OFF)),
        **_each("training", "step_rewards_weights step_rewards_k_limits", UnsupportedKey(_STEPS, ({},), _STEPS_OFF)),
        "training.rewards.step_rewards_enabled": UnsupportedKey(_STEPS, (False,)),
        "training.rewards.step_rewards_mode": UnsupportedKey(_STEPS, ("off",)),
        **_each("training.rewards", _STEP_REWARDS, UnsupportedKey(_STEPS)),
        **_each(
            "training", "reward_positive reward_negative_no_tool reward_negative_no_answer", UnsupportedKey(_OWN_REWARD)
        ),
        "data.episodes_per_iteration": UnsupportedKey("an iteration is batch_size x group_size rollouts"),
        "data.evaluation_episodes": UnsupportedKey("[evaluation] says what is evaluated"),
        "judge": UnsupportedKey(_JUDGE, ({},), _JUDGE_OFF),
        "rubric.enabled": UnsupportedKey(_JUDGE, (False,)),
        **_each("rubric", "model api_base api_key_env event outcome", UnsupportedKey(_JUDGE, (), _RUBRIC_OFF)),
        "rubric.weights.env": UnsupportedKey(_JUDGE, (1, 1.0), _RUBRIC_OFF),
        **_each("rubric.weights", "event outcome", UnsupportedKey(_JUDGE, (0, 0.0), _RUBRIC_OFF)),
        "smoke": UnsupportedKey(_CLIENT),
    },
    "sft": {
        "compute": UnsupportedKey(_MACHINES),
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
        "task": UnsupportedKey("env_config is what the environment is given"),
        **_each("eval", "trace_format return_trace collect_traces trace_db", UnsupportedKey(_TRACES)),
        "eval.provider": UnsupportedKey(_HERE, ("synth",)),
        "eval.inference_url": UnsupportedKey(_ADDRESS),
        "eval.env_file": UnsupportedKey(_CLIENT),
        **_each("eval", "judge judges", UnsupportedKey(_JUDGE)),
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
    """A sentence for the keys of the document that have no effect on this kind of job: one for a table and reason."""
    flat = kind == "eval" and "eval" not in document.data
    groups: dict[tuple[Path, str], list[Path]] = {}
    for dotted, unsupported in UNSUPPORTED[kind].items():
        path: Path = tuple(dotted.removeprefix("eval.").split(".") if flat else dotted.split("."))
        value = document.get(path)
        if value is None or any(_same(value, harmless) for harmless in unsupported.harmless):
            continue
        if unsupported.unless is not None and _same(document.get(unsupported.unless[0]), unsupported.unless[1]):
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
