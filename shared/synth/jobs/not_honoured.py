"""Keys of the published contract that are read and checked, and have no effect yet: one table, one warning each."""

from __future__ import annotations

from typing import Any, NamedTuple

from synth.jobs.toml import Document

_ONE_DEVICE = "training and inference use the devices that they find"
_ENGINE = "the built-in engine has no such setting"
_STEPS = "each rollout earns one reward, that of its whole episode"
_TEXT = "only text is trained"
_JUDGE = "judges are not asked, the environment's reward stands alone"
_TRACES = "traces are recorded by the inference service, always"
_POLICY = "the task app and the model are all that an evaluation needs"


class Ignored(NamedTuple):
    """Why a key has no effect, and the values with which nothing is lost, so that nothing is said."""

    reason: str
    harmless: tuple[Any, ...] = ()


NOT_HONOURED: dict[str, dict[str, Ignored]] = {
    "rl": {
        "services.judge_url": Ignored(_JUDGE),
        "compute": Ignored(_ONE_DEVICE),
        "topology": Ignored(_ONE_DEVICE),
        "vllm": Ignored(_ENGINE),
        "reference.placement": Ignored("there is no KL term, so no reference model", ("none",)),
        "model.supports_vision": Ignored(_TEXT, (False,)),
        "model.max_images_per_message": Ignored(_TEXT),
        "model.vision_processor_id": Ignored(_TEXT),
        "policy.repetition_penalty": Ignored("it would make the sampled distribution another", (1.0,)),
        "policy.stop_sequences": Ignored("a reply ends at the model's own end token", ([],)),
        "policy.inference_url": Ignored("the platform gives each rollout an address of its own"),
        "rollout.batches_per_step": Ignored("an iteration is one batch", (1,)),
        "rollout.use_vision": Ignored(_TEXT, (False,)),
        "rollout.image_only_mode": Ignored(_TEXT, (False,)),
        "rollout.max_images_per_step": Ignored(_TEXT),
        "rollout.policy_config.use_vision": Ignored(_TEXT, (False,)),
        "rollout.task_app_origin_rewards_only": Ignored(_JUDGE, (True,)),
        "rollout.rubric_rewards_only": Ignored(_JUDGE, (False,)),
        "training.gradient_accumulation_steps": Ignored("minibatches and micro_batch_tokens decide this", (1,)),
        "training.max_accumulated_minibatch": Ignored("minibatches and micro_batch_tokens decide this", (1,)),
        "training.log_interval": Ignored("every iteration is an event", (1,)),
        "training.weight_sync_interval": Ignored("weights are synced after every iteration", (1,)),
        "training.weight_sync.enable": Ignored("weights are synced after every iteration", (True,)),
        "training.weight_sync.targets": Ignored("the policy is what is synced", (["policy"],)),
        "training.weight_sync.mode": Ignored("weights travel through the blob store"),
        "training.weight_sync.direct": Ignored("weights travel through the blob store", (False,)),
        "training.weight_sync.verify_every_k": Ignored("every version is proven by its digests", (0, 1)),
        "training.weight_sync.weight_sync_interval": Ignored("weights are synced after every iteration", (1,)),
        "training.step_rewards_enabled": Ignored(_STEPS, (False,)),
        "training.step_rewards_mode": Ignored(_STEPS, ("off",)),
        "training.event_rewards_kind": Ignored(_STEPS),
        "training.rewards.step_rewards_enabled": Ignored(_STEPS, (False,)),
        "training.rewards.step_rewards_mode": Ignored(_STEPS, ("off",)),
        "training.rewards.event_rewards_kind": Ignored(_STEPS),
        "training.max_images_per_message": Ignored(_TEXT),
        "training.supports_vision": Ignored(_TEXT, (False,)),
        "judge": Ignored(_JUDGE, ({"enabled": False},)),
        "rubric.enabled": Ignored(_JUDGE, (False,)),
        "rubric.weights.event": Ignored(_JUDGE, (0, 0.0)),
        "rubric.weights.outcome": Ignored(_JUDGE, (0, 0.0)),
        "smoke": Ignored("it is for the client alone"),
    },
    "sft": {
        "compute": Ignored(_ONE_DEVICE),
        "data.topology": Ignored(_ONE_DEVICE, ({},)),
        "training.use_qlora": Ignored("the base is kept in full precision, the adapter is trained", (False,)),
        "policy": Ignored("it is for RL"),
        "hyperparameters.parallelism.use_deepspeed": Ignored(_ONE_DEVICE, (False,)),
        "hyperparameters.parallelism.deepspeed_stage": Ignored(_ONE_DEVICE, (0,)),
        "hyperparameters.parallelism.fsdp": Ignored(_ONE_DEVICE, (False,)),
        "hyperparameters.parallelism.tensor_parallel_size": Ignored(_ONE_DEVICE, (1,)),
        "hyperparameters.parallelism.pipeline_parallel_size": Ignored(_ONE_DEVICE, (1,)),
        "hyperparameters.parallelism.bf16": Ignored("the device decides: float32 on CPU, bfloat16 on GPU"),
        "hyperparameters.parallelism.fp16": Ignored("float32 on CPU, bfloat16 on GPU", (False,)),
    },
    "eval": {
        "split": Ignored("seeds decide what is asked"),
        "trace_format": Ignored(_TRACES),
        "return_trace": Ignored(_TRACES),
        "max_llm_calls": Ignored("use policy_config.max_llm_calls"),
        "policy": Ignored(_POLICY),
        "policy_config.use_vision": Ignored(_TEXT, (False,)),
        "reasoning_effort": Ignored(_POLICY),
        "system_hint": Ignored(_POLICY),
        "tool_choice": Ignored("the task app says which tools it wants called"),
        "inference_url": Ignored("the platform gives each rollout an address of its own"),
        "env_file": Ignored("it is for the client alone"),
        "metadata": Ignored("seeds decide what is asked"),
        "metadata_sql": Ignored("seeds decide what is asked"),
        "judge": Ignored(_JUDGE),
        "judges": Ignored(_JUDGE),
    },
}


def ignored_keys(document: Document, kind: str) -> list[str]:
    """One sentence for each key of the document that has no effect on this kind of job."""
    root = ("eval",) if kind == "eval" and "eval" in document.data else ()
    sentences: list[str] = []
    for dotted, ignored in NOT_HONOURED[kind].items():
        path = (*root, *dotted.split("."))
        value = document.get(path)
        if value is None or any(value == harmless for harmless in ignored.harmless):
            continue
        sentences.append(f"{document.where(path)} has no effect: {ignored.reason}")
    return sentences
