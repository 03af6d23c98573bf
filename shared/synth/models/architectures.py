"""Which architectures are causal language models, by the `model_type` of a config.json, without loading anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from synth.errors import Problem

#: `model_type` of a config.json → its family, if that has another name.
FAMILIES = {
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3",
    "qwen3_vl": "qwen3-vl",
    "qwen3_vl_moe": "qwen3-vl",
}

_CAUSAL = """
    afmoe apertus arcee aria_text axk1 axk2 bamba bart bert bert-generation big_bird bigbird_pegasus biogpt bitnet
    blenderbot blenderbot-small bloom blt camembert codegen cohere cohere2 cohere2_moe cohere_compass_text cpmant
    ctrl cwm data2vec-text dbrx deepseek_v2 deepseek_v3 deepseek_v32 deepseek_v4 diffllama doge dots1 electra emu3
    ernie ernie4_5 ernie4_5_moe exaone4 exaone_moe falcon falcon_h1 falcon_mamba flex_olmo fuyu gemma gemma2 gemma3
    gemma3_text gemma3n gemma3n_text gemma4 gemma4_assistant gemma4_text gemma4_unified gemma4_unified_assistant
    gemma4_unified_text git glm glm4 glm4_moe glm4_moe_lite glm_moe_dsa got_ocr2 gpt-sw3 gpt2 gpt_bigcode gpt_neo
    gpt_neox gpt_neox_japanese gpt_oss gptj granite granite_swa granitemoe granitemoe_swa granitemoehybrid
    granitemoeshared helium hrm_text hunyuan_v1_dense hunyuan_v1_moe hy_v3 hy_v4 hyperclovax inkling_text jais2
    jamba jetmoe kimi_linear laguna lfm2 lfm2_moe llama llama4 llama4_text longcat_flash mamba mamba2 marian mbart
    megatron-bert mellum mimo_v2_flash minicpm3 minimax minimax_m2 minimax_m3_vl_text ministral ministral3 mistral
    mixtral mllama modernbert-decoder moshi mpt musicgen musicgen_melody mvp nanochat nemotron nemotron_h olmo olmo2
    olmo3 olmo_hybrid olmoe openai-gpt opt pegasus persimmon phi phi3 phi4_multimodal phimoe plbart prophetnet qwen2
    qwen2_moe qwen3 qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen3_moe qwen3_next qwen4_exp qwen4_exp_text
    recurrent_gemma reformer rembert roberta roberta-prelayernorm roc_bert roformer rwkv seed_oss smollm3 solar_open
    stablelm starcoder2 trocr vaultgemma whisper xglm xlm xlm-roberta xlm-roberta-xl xlnet xlstm xmod youtu zamba
    zamba2 zaya
"""
#: Every type that transformers loads as a causal language model; a test compares it with the installed release.
CAUSAL_TYPES = frozenset(_CAUSAL.split())

#: Kinds of layers, in a config's `layer_types`: attention, and those with a state of their own or with none.
_ATTENTION = frozenset({"full_attention", "sliding_attention"})
_STATES = frozenset({"linear_attention", "conv", "mamba", "mamba2", "hybrid", "moe", "mlp"})

#: Keys of a config that say how many experts a layer has.
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def has_experts(config: dict[str, Any]) -> bool:
    """Return whether the layers of a config.json's model have experts."""
    return any(isinstance(config.get(key), int) and config[key] > 1 for key in _EXPERTS)


def family_of_config(config: dict[str, Any]) -> str | None:
    """Return the family of a config.json's model; None if it is no causal language model that can be loaded."""
    model_type = str(config.get("model_type"))
    return FAMILIES.get(model_type) or (model_type if model_type in CAUSAL_TYPES else None)


def fault_of_config(model_id: str, config: dict[str, Any], where: str) -> Problem | None:
    """Return why a config.json's model cannot be trained or served; None if the config shows no reason."""
    if family_of_config(config) is not None:
        return None
    model_type = config.get("model_type")
    if config.get("auto_map"):
        return Problem(
            what=f"the model {model_id!r} is of type {model_type!r} and brings its own code (auto_map), "
            "which is never run",
            expected="an architecture of transformers itself, which needs no trust_remote_code",
            fix="choose a model whose config.json has a model_type that transformers supports",
            where=where,
        )
    if not isinstance(model_type, str):
        return Problem(
            what=f"the config.json of {model_id!r} has no model_type",
            expected="the config.json of a transformers model",
            fix="copy the model's folder again",
            where=where,
        )
    return Problem(
        what=f"the model {model_id!r} is of type {model_type!r}, which cannot be trained here",
        expected="a causal language model that transformers loads, such as qwen3, llama, mistral or gemma3_text, or a "
        "Qwen3-VL",
        fix="docs/models.md has the families that are proven",
        where=where,
    )


def unusual_layers(config: Any, *, states: bool = False) -> str | None:
    """Return the parts of a model's layers that are not computed here; None without any.

    config: transformers' config of the text model. states: whether layers with a state of their own are computed, as in
    the trainer, which pads their rows.
    """
    known = _ATTENTION | _STATES if states else _ATTENTION
    unusual = set(getattr(config, "layer_types", None) or ()) - known
    if unusual or not hasattr(config, "num_key_value_heads"):
        layers = ", ".join(sorted(unusual)) or "no heads of keys and values"
        return f"has {layers}; expected full or sliding-window attention in every layer"
    return None


@dataclass(frozen=True)
class LogitRule:
    """What a model computes from the product of its last hidden state and its head: Gemma caps it, Granite divides it.

    logits = cap · tanh(scale · product / cap); without a cap scale · product. Trainer and embedded engine use this, so
    that they agree.
    """

    scale: float = 1.0
    cap: float | None = None

    @classmethod
    def of(cls, config: Any) -> LogitRule:
        """Return the rule of a model, by transformers' config of its text model."""
        names = ("logit_scale", "lm_head_multiplier", "logits_scaling", "logits_mup_width_multiplier")
        by_logit, by_head, scaling, width = (float(getattr(config, name, None) or 1.0) for name in names)
        # hyperclovax multiplies by what the other types divide by.
        divided = (1 / scaling if config.model_type == "hyperclovax" else scaling) * width
        caps = (getattr(config, name, None) for name in ("final_logit_softcapping", "logits_soft_cap"))
        return cls(by_logit * by_head / divided, next((float(cap) for cap in caps if cap), None))

    def logits(self, product: Any) -> Any:
        """Return the logits, a tensor as the product."""
        scaled = product if self.scale == 1.0 else product * self.scale
        return scaled if self.cap is None else (scaled / self.cap).tanh() * self.cap

    def slope(self, logits: Any) -> Any:
        """Return the derivative of the logits by the product, where it has given these logits."""
        return self.scale if self.cap is None else self.scale * (1 - (logits / self.cap).square())


#: The logits are the product.
PLAIN = LogitRule()
