"""Keys of the published contract that are read and checked, and have no effect: one table, one warning each."""

from __future__ import annotations

from typing import Any, NamedTuple

from synth.jobs.parse.toml import Document, Path

_MACHINES = "the cluster has the machines that it has"
_OPERATOR = "inference has the GPUs that the cluster's operator gives it"
_OF_INFERENCE = "gpus_for_vllm gpus_for_ref tensor_parallel"
_ENGINE = "the built-in engine has no such setting"
_STEPS = "each rollout earns one reward, that of its whole episode"
_TEXT = "only text is trained"
_JUDGE = "judges are not asked, the environment's reward stands alone"
_TRACES = "traces are recorded by the inference service, always"
_HERE = "the job's own model is served, by this platform"
_ADDRESS = "the platform gives each rollout an address of its own"
_SEEDS = "seeds decide what is asked"
_SYNC = "weights are synced after every iteration"
_BLOBS = "weights travel through the blob store"
_MINIBATCHES = "minibatches and micro_batch_tokens decide this"
_REFERENCE = "the reference model lives in the trainer, it is no server"
_OWN_REWARD = "the task app says what a reply earns"
_FP16 = "gradients of float16 need a scaling that this trainer has not; bf16 is what GPUs train in"
_CLIENT = "it is for the client alone"
_FILTER = "the client's filter has no such choice"
_JUDGE_OFF: tuple[Path, Any] = (("judge", "enabled"), False)
_RUBRIC_OFF: tuple[Path, Any] = (("rubric", "enabled"), False)
_STEPS_OFF: tuple[Path, Any] = (("training", "step_rewards_enabled"), False)


class Ignored(NamedTuple):
    """Why a key has no effect, and the values with which nothing is lost, so that nothing is said.

    unless: another key, and the value of it that already says that this one has no effect.
    """

    reason: str
    harmless: tuple[Any, ...] = ()
    unless: tuple[Path, Any] | None = None


def _each(table: str, keys: str, ignored: Ignored) -> dict[str, Ignored]:
    return {f"{table}.{key}" if table else key: ignored for key in keys.split()}


_STEP_REWARDS = "step_rewards_indicator_lambda step_rewards_beta step_rewards_strategy event_rewards_kind"

NOT_HONOURED: dict[str, dict[str, Ignored]] = {
    "rl": {
        "services.judge_url": Ignored(_JUDGE),
        **_each("compute", "gpu_type gpu_count nodes", Ignored(_MACHINES)),
        **_each("topology", _OF_INFERENCE, Ignored(_OPERATOR)),
        **_each("compute.topology", _OF_INFERENCE, Ignored(_OPERATOR)),
        "vllm": Ignored(_ENGINE),
        **_each("reference", "port tp health_max_wait_s health_interval_ms", Ignored(_REFERENCE)),
        "model.supports_vision": Ignored(_TEXT, (False,)),
        **_each("model", "max_images_per_message vision_processor_id", Ignored(_TEXT)),
        "policy.repetition_penalty": Ignored("it would make the sampled distribution another", (1.0,)),
        "policy.stop_sequences": Ignored("a reply ends at the model's own end token", ([],)),
        "policy.inference_url": Ignored(_ADDRESS),
        "rollout.batches_per_step": Ignored("an iteration is one batch", (1,)),
        **_each("rollout", "use_vision image_only_mode", Ignored(_TEXT, (False,))),
        "rollout.max_images_per_step": Ignored(_TEXT),
        "rollout.policy_config.use_vision": Ignored(_TEXT, (False,)),
        "rollout.policy_config.provider": Ignored(_HERE, ("synth",)),
        "rollout.policy_config.inference_url": Ignored(_ADDRESS),
        "rollout.task_app_origin_rewards_only": Ignored(_JUDGE, (True,)),
        "rollout.rubric_rewards_only": Ignored(_JUDGE, (False,)),
        **_each("training", "gradient_accumulation_steps max_accumulated_minibatch", Ignored(_MINIBATCHES, (1,))),
        "training.log_interval": Ignored("every iteration is an event", (1,)),
        "training.weight_sync_interval": Ignored(_SYNC, (1,)),
        "training.weight_sync.enable": Ignored(_SYNC, (True,)),
        "training.weight_sync.targets": Ignored("the policy is what is synced", (["policy"],)),
        "training.weight_sync.mode": Ignored(_BLOBS),
        "training.weight_sync.direct": Ignored(_BLOBS, (False,)),
        "training.weight_sync.weight_sync_interval": Ignored(_SYNC, (1,)),
        "training.step_rewards_enabled": Ignored(_STEPS, (False,)),
        "training.step_rewards_mode": Ignored(_STEPS, ("off",), _STEPS_OFF),
        **_each("training", _STEP_REWARDS, Ignored(_STEPS, (), _STEPS_OFF)),
        **_each("training", "step_rewards_weights step_rewards_k_limits", Ignored(_STEPS, ({},), _STEPS_OFF)),
        "training.rewards.step_rewards_enabled": Ignored(_STEPS, (False,)),
        "training.rewards.step_rewards_mode": Ignored(_STEPS, ("off",)),
        **_each("training.rewards", _STEP_REWARDS, Ignored(_STEPS)),
        "training.max_images_per_message": Ignored(_TEXT),
        "training.supports_vision": Ignored(_TEXT, (False,)),
        **_each("training", "reward_positive reward_negative_no_tool reward_negative_no_answer", Ignored(_OWN_REWARD)),
        **_each("data", "split evaluation_split", Ignored(_SEEDS)),
        "data.episodes_per_iteration": Ignored("an iteration is batch_size x group_size rollouts"),
        "data.evaluation_episodes": Ignored("[evaluation] says what is evaluated"),
        "judge": Ignored(_JUDGE, ({},), _JUDGE_OFF),
        "rubric.enabled": Ignored(_JUDGE, (False,)),
        **_each("rubric", "model api_base api_key_env event outcome", Ignored(_JUDGE, (), _RUBRIC_OFF)),
        "rubric.weights.env": Ignored(_JUDGE, (1, 1.0), _RUBRIC_OFF),
        **_each("rubric.weights", "event outcome", Ignored(_JUDGE, (0, 0.0), _RUBRIC_OFF)),
        "smoke": Ignored(_CLIENT),
    },
    "sft": {
        "compute": Ignored(_MACHINES),
        "data.topology": Ignored(_MACHINES, ({},)),
        "job.poll_seconds": Ignored("jobs are followed, not polled"),
        "job.modalities": Ignored(_TEXT, (["text"],)),
        "job.description": Ignored("it is a note for readers; [tags] stay with the job"),
        "policy": Ignored("it is for RL"),
        "metadata": Ignored("it is the client's own record of the job"),
        "model_config.supports_vision": Ignored(_TEXT, (False,)),
        "model_config.max_images_per_message": Ignored(_TEXT),
        "model_config.max_model_len": Ignored("[hyperparameters] sequence_length decides"),
        "hyperparameters.parallelism.fp16": Ignored(_FP16, (False,)),
    },
    "eval": {
        "type": Ignored("a model is evaluated the same, however it was trained"),
        "task": Ignored("env_config is what the environment is given"),
        **_each("eval", "split metadata metadata_sql", Ignored(_SEEDS)),
        **_each("eval", "trace_format return_trace collect_traces trace_db", Ignored(_TRACES)),
        "eval.provider": Ignored(_HERE, ("synth",)),
        "eval.inference_url": Ignored(_ADDRESS),
        **_each("eval", "use_vision image_only_mode", Ignored(_TEXT, (False,))),
        **_each("eval", "max_steps max_steps_per_episode", Ignored("put it into env_config, under the app's own name")),
        "eval.use_tools": Ignored("the task app says which tools there are"),
        "eval.tool_choice": Ignored("the task app says which tools it wants called"),
        **_each("eval", "reasoning_effort system_hint", Ignored("the task app writes the request")),
        "eval.env_file": Ignored(_CLIENT),
        **_each("eval", "judge judges", Ignored(_JUDGE)),
        **{
            f"{table}.{key}": ignored
            for table in ("eval.policy_config", "eval.policy", "policy", "rollout.policy_config")
            for key, ignored in (
                ("use_vision", Ignored(_TEXT, (False,))),
                ("provider", Ignored(_HERE, ("synth",))),
                ("inference_url", Ignored(_ADDRESS)),
            )
        },
    },
    "filter": {
        **_each("filter", "offset shuffle shuffle_seed", Ignored("the client's filter reads it and does nothing")),
        **_each(
            "filter",
            "min_steps_per_episode max_steps_per_episode min_achievements_per_episode detect_loops "
            "max_repeated_actions min_unique_states filter_errors filter_timeouts export_format include_images "
            "include_metadata",
            Ignored(_FILTER),
        ),
        **_each("", "sft split output", Ignored(_FILTER)),
    },
}


def ignored_keys(document: Document, kind: str) -> list[str]:
    """A sentence for the keys of the document that have no effect on this kind of job: one for a table and reason."""
    flat = kind == "eval" and "eval" not in document.data
    groups: dict[tuple[Path, str], list[Path]] = {}
    for dotted, ignored in NOT_HONOURED[kind].items():
        path: Path = tuple(dotted.removeprefix("eval.").split(".") if flat else dotted.split("."))
        value = document.get(path)
        if value is None or any(_same(value, harmless) for harmless in ignored.harmless):
            continue
        if ignored.unless is not None and _same(document.get(ignored.unless[0]), ignored.unless[1]):
            continue
        group = groups.setdefault((path[:-1], ignored.reason), [])
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
