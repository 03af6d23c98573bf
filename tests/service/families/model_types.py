"""Tiny configs of every `model_type` that docs/models.md has a row for, by their differences from a common one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.service.families.architectures import ARCHITECTURES, save_tokenizer

VOCABULARY = 320
_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.06,
    "pad_token_id": 0,
    "eos_token_id": 0,
}
_KINDS = ["sliding_attention", "full_attention"]
_LINEAR = ["linear_attention", "full_attention"]
#: Windows, a rope of each kind of layer, dense and sparse layers, heads of 16.
_W: dict[str, Any] = {"layer_types": _KINDS, "sliding_window": 8}
_R: dict[str, Any] = {"rope_parameters": {kind: {"rope_type": "default", "rope_theta": 1e4} for kind in _KINDS}}
_P: dict[str, Any] = {"mlp_layer_types": ["dense", "sparse"]}
_H: dict[str, Any] = {"head_dim": 16}
#: Experts, by the names that different types have for the same numbers.
_M: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_N: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
_X: dict[str, Any] = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
_SHARED: dict[str, Any] = {"shared_expert_intermediate_size": 32}
_MLA: dict[str, Any] = {
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "num_key_value_heads": 4,
}
_DEEPSEEK: dict[str, Any] = {**_MLA, **_X, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
_DELTA: dict[str, Any] = {
    **_H,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "layer_types": _LINEAR,
}
_MAMBA: dict[str, Any] = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "mamba_n_groups": 1,
    "mamba_expand": 2,
    "mamba_chunk_size": 16,
}
_EARLY_FFN: dict[str, Any] = {**_X, **_H, "first_k_dense_replace": 1}

_PLAIN = """
    llama qwen2 phi phi3 olmo olmo2 smollm3 apertus arcee stablelm starcoder2 cohere nanochat bitnet jais2 ministral3
    cwm diffllama falcon gptj
"""
_WITH_HEAD_DIM = "qwen3 gemma glm glm4 seed_oss ernie4_5 hunyuan_v1_dense nemotron helium"

#: `model_type` → what its config has beside the common one.
TYPES: dict[str, dict[str, Any]] = {
    # Attention alone, in full or in windows.
    **{name: {} for name in _PLAIN.split()},
    **dict.fromkeys(_WITH_HEAD_DIM.split(), _H),
    "mistral": {"sliding_window": 8},
    "olmo3": _W,
    "exaone4": _W,
    "cohere2": {**_W, **_H},
    "gemma2": {**_W, **_H},
    "vaultgemma": {**_W, **_H},
    "gemma3_text": {**_W, **_R, **_H},
    "granite": {"logits_scaling": 8.0},
    "granite_swa": {**_W, "layer_rope_theta": [1e4] * 2},
    "hyperclovax": {"logits_scaling": 0.25},
    "gpt_bigcode": {"multi_query": True},
    # Experts.
    "qwen2_moe": {**_M, **_SHARED},
    "qwen3_moe": {**_M, **_H},
    "cohere2_moe": {**_M, **_W, **_H},
    "mixtral": _N,
    "phimoe": _N,
    "granitemoe": {**_N, "logits_scaling": 8.0},
    "granitemoeshared": {**_N, "logits_scaling": 8.0, "shared_intermediate_size": 32},
    "minimax_m2": {**_N, **_H},
    "gpt_oss": {**_N, **_W, **_H},
    "jetmoe": {**_N, "kv_channels": 16, "num_key_value_heads": 2},
    "solar_open": {**_X, **_H},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "flex_olmo": {"num_experts": 4, "num_experts_per_tok": 2},
    "glm4_moe": _EARLY_FFN,
    "dots1": _EARLY_FFN,
    "hunyuan_v1_moe": {**_H, "num_experts": 4, "moe_topk": 2},
    "ernie4_5_moe": {
        **_H,
        "moe_num_experts": 4,
        "moe_k": 2,
        "moe_num_shared_experts": 1,
        "moe_intermediate_size": 32,
        "moe_layer_start_index": 1,
        "moe_layer_end_index": 1,
    },
    "exaone_moe": {**_M, **_W, **_P, "num_shared_experts": 1},
    "hy_v3": {**_M, **_H, **_P, "num_shared_experts": 1},
    "afmoe": {**_M, **_W, **_H, "num_shared_experts": 1, "num_dense_layers": 1},
    "laguna": {**_M, **_W, **_R, **_H, **_P, **_SHARED, "num_attention_heads_per_layer": [4, 4]},
    # Layers whose keys and values have other shapes.
    "mimo_v2_flash": {**_W, **_R, **_P, **_X, "head_dim": 24, "v_head_dim": 16},
    "deepseek_v2": {**_DEEPSEEK, "topk_method": "greedy"},
    "deepseek_v3": _DEEPSEEK,
    "glm4_moe_lite": {**_DEEPSEEK, **_P},
    "youtu": _MLA,
    "axk1": _DEEPSEEK,
    "minicpm3": {**_MLA, "dim_model_base": 32},
    "longcat_flash": {
        **_MLA,
        "head_dim": 8,
        "num_layers": 2,
        "ffn_hidden_size": 96,
        "expert_ffn_hidden_size": 32,
        "moe_topk": 2,
        "n_routed_experts": 4,
        "zero_expert_num": 2,
    },
    "gemma3n_text": {
        **_R,
        **_H,
        "num_hidden_layers": 4,
        "layer_types": _KINDS * 2,
        "sliding_window": 8,
        "num_kv_shared_layers": 2,
        "intermediate_size": [96] * 4,
        "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0],
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": VOCABULARY,
        "laurel_rank": 8,
    },
    "gemma4_text": {
        **_H,
        "num_hidden_layers": 4,
        "layer_types": _KINDS * 2,
        "sliding_window": 8,
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": VOCABULARY,
        "per_layer_config": {"01": {"head_dim": 32}, "03": {"head_dim": 32}},
        "final_logit_softcapping": 30.0,
    },
    # States, in all layers or in some.
    "qwen3_next": {**_DELTA, **_M, **_SHARED},
    "qwen3_5_text": _DELTA,
    "qwen3_5_moe_text": {**_DELTA, **_M},
    "olmo_hybrid": {**_DELTA, "num_key_value_heads": 4, "linear_num_key_heads": 4},
    "kimi_linear": {
        **_DEEPSEEK,
        **_P,
        "q_lora_rank": None,
        "layer_types": _LINEAR,
        "num_experts": 4,
        "num_experts_per_token": 2,
        "num_shared_experts": 1,
        "linear_head_dim": 16,
        "linear_num_heads": 4,
        "model_max_length": 512,
    },
    "nemotron_h": {
        **_H,
        **_X,
        "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],
        "ssm_state_size": 16,
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "n_groups": 2,
        "chunk_size": 16,
        "moe_shared_expert_intermediate_size": 32,
    },
    "granitemoehybrid": {
        **_MAMBA,
        **_N,
        "layer_types": _LINEAR,
        "shared_intermediate_size": 32,
        "logits_scaling": 8.0,
    },
    "falcon_h1": {**_MAMBA, "mamba_d_ssm": 128, "lm_head_multiplier": 0.5},
    "bamba": {**_MAMBA, "attn_layer_indices": [1]},
    "jamba": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "mamba_d_state": 8,
        "mamba_dt_rank": 8,
        "use_mamba_kernels": False,
    },
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
    "lfm2_moe": {**_M, "layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "zaya": {
        **_H,
        "num_experts": 4,
        "moe_intermediate_size": 32,
        "layer_types": ["hybrid"] * 2,
        "router_hidden_size": 16,
    },
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 1, "chunk_size": 16},
}


def save_type(path: Path, model_type: str, **changes: Any) -> None:
    """Write a model folder of a type with random weights, a tokenizer and a chat template.

    changes: of its config.
    """
    torch.manual_seed(0)
    config: Any = AutoConfig.for_model(model_type, **{**_COMMON, **TYPES[model_type], **changes})
    model: Any = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Sinks and biases begin at 0, where leaving them out would not show.
            if name.endswith(("sinks", "bias")):
                parameter.normal_(std=0.1)
    model.generation_config.eos_token_id = 0
    model.generation_config.pad_token_id = 0
    model.save_pretrained(path)
    save_tokenizer(path, ARCHITECTURES[0])
