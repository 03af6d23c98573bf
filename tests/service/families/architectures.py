"""Tiny models of real architectures, with random weights, a tokenizer, and a chat template in their family's style."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast

_CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role + '\n' + m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_LLAMA = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
_MISTRAL = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m.role == 'user' %}[INST] {{ m.content }}[/INST]{% else %} {{ m.content }}</s>{% endif %}{% endfor %}"
)
_GEMMA = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>"
    "{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
_PHI = (
    "{% for m in messages %}<|im_start|>{{ m.role }}<|im_sep|>{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant<|im_sep|>{% endif %}"
)
_HARMONY = (
    "{% for m in messages %}<|start|>{{ m.role }}"
    "{{ '<|channel|>final' if m.role == 'assistant' }}<|message|>{{ m.content }}"
    "{{ '<|return|>' if m.role == 'assistant' and loop.last and not add_generation_prompt else '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant<|channel|>final<|message|>{% endif %}"
)
_VOCABULARY = 320
_SIZES = {
    "vocab_size": _VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.06,
}
#: One layer that sees everything and one that sees 8 positions.
_WINDOWS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
_EXPERTS = {"num_experts_per_tok": 2, "num_hidden_layers": 2}
#: gpt-oss has no other; vLLM looks at its numbers alone.
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 16,
}


@dataclass(frozen=True)
class Architecture:
    """A family to prove. name: as the table has it. model: its class in transformers, whose config is beside it.

    special: its control tokens; the first one is its eos. ends: the one with which its template ends a turn.
    configured: what its generation config calls eos, beside the eos itself. sizes: of its config, beside the common
    ones. experts: whether its layers have experts.
    """

    name: str
    model: str
    template: str
    special: tuple[str, ...]
    ends: str
    sizes: dict[str, Any] = field(default_factory=dict[str, Any])
    configured: tuple[str, ...] = ()
    experts: bool = False

    @property
    def config(self) -> Callable[..., Any]:
        name = self.model.replace("ForCausalLM", "Config")
        return getattr(transformers, "Gemma3TextConfig" if name == "Gemma3Config" else name)


_QWEN = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_LLAMA_TOKENS = ("<|end_of_text|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")

ARCHITECTURES = (
    # A base model, whose eos ends a document and whose template ends a turn with another token.
    Architecture("Qwen2.5 (base)", "Qwen2ForCausalLM", _CHATML, _QWEN, "<|im_end|>"),
    Architecture("Qwen3", "Qwen3ForCausalLM", _CHATML, _QWEN[::-1], "<|im_end|>", {"head_dim": 16}),
    Architecture(
        "Qwen3-MoE",
        "Qwen3MoeForCausalLM",
        _CHATML,
        _QWEN[::-1],
        "<|im_end|>",
        {**_EXPERTS, "head_dim": 16, "num_experts": 4, "moe_intermediate_size": 32},
        experts=True,
    ),
    Architecture("Llama 3", "LlamaForCausalLM", _LLAMA, _LLAMA_TOKENS, "<|eot_id|>", configured=("<|eot_id|>",)),
    Architecture("Mistral", "MistralForCausalLM", _MISTRAL, ("</s>", "<s>"), "</s>", {"sliding_window": 8}),
    Architecture(
        "Gemma 3 (text)",
        "Gemma3ForCausalLM",
        _GEMMA,
        ("<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"),
        "<end_of_turn>",
        {**_WINDOWS, "head_dim": 16, "query_pre_attn_scalar": 32},
        configured=("<end_of_turn>",),
    ),
    Architecture(
        "Phi-4 (phi3)",
        "Phi3ForCausalLM",
        _PHI,
        ("<|endoftext|>", "<|im_start|>", "<|im_sep|>", "<|im_end|>"),
        "<|im_end|>",
        {"pad_token_id": 0},
    ),
    Architecture("OLMo 3", "Olmo3ForCausalLM", _CHATML, _QWEN, "<|im_end|>", _WINDOWS),
    Architecture(
        "gpt-oss",
        "GptOssForCausalLM",
        _HARMONY,
        ("<|return|>", "<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>"),
        "<|return|>",
        {
            **_EXPERTS,
            **_WINDOWS,
            "head_dim": 16,
            "num_local_experts": 4,
            "intermediate_size": 32,
            "rope_parameters": _YARN,
        },
        configured=("<|call|>",),
        experts=True,
    ),
)


def save_architecture(path: Path, architecture: Architecture, **sizes: Any) -> None:
    """Write a model folder as the hub has them: weights, config, generation config, tokenizer and template.

    sizes: of the config, in place of the architecture's own.
    """
    tokenizer = _tokenizer(architecture)
    ids = tokenizer.get_vocab()
    eos = [ids[token] for token in (architecture.special[0], *architecture.configured)]
    torch.manual_seed(0)
    config = _config(architecture, eos_token_id=eos[0], **sizes)
    model = getattr(transformers, architecture.model)(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Sinks and biases begin at 0, where leaving them out would not show.
            if name.endswith(("sinks", "bias")):
                parameter.normal_(std=0.5)
    model.generation_config = GenerationConfig(eos_token_id=eos if len(eos) > 1 else eos[0], pad_token_id=0)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)


def save_tokenizer(path: Path, architecture: Architecture) -> None:
    """Write its tokenizer and template alone."""
    _tokenizer(architecture).save_pretrained(path)


def save_config(path: Path, architecture: Architecture, **sizes: Any) -> None:
    """Write the config.json of such a folder alone."""
    _config(architecture, **sizes).save_pretrained(path)


def _config(architecture: Architecture, **sizes: Any) -> Any:
    rope = {"rope_type": "default", "rope_theta": 1e4}
    by_layer = {"sliding_attention": rope, "full_attention": rope}
    settings = {
        **_SIZES,
        "rope_parameters": by_layer if architecture.model.startswith("Gemma3") else rope,
        "pad_token_id": 0,
        **architecture.sizes,
        **sizes,
    }
    return architecture.config(**settings)


def _tokenizer(architecture: Architecture) -> PreTrainedTokenizerFast:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY - 8,
        special_tokens=list(architecture.special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(["What is 12 + 34?", "2+4=06; 1+3+0=04; answer 46"] * 20, trainer)
    others = {"additional_special_tokens": list(architecture.special[1:])}
    bos = next((token for token in architecture.special if token in ("<s>", "<bos>", "<|begin_of_text|>")), None)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=architecture.special[0],
        pad_token=architecture.special[0],
        bos_token=bos,
        chat_template=architecture.template,
        **others,
    )
