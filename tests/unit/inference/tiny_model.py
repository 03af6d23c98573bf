"""A tiny real Qwen3 and its tokenizer, made in a second, its policy files, and its logprobs by a plain forward."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from synth.weights.peft_compat import LoraConfig, get_peft_model, get_peft_model_state_dict
from synth.weights.policy_file import write_policy

_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_PLAIN_MARKS = ["<tool_call>", "</tool_call>", "<think>", "</think>"]
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Qwen3's in miniature: tools in the system turn, earlier thinking stripped, an empty think block when it is off.
_TEMPLATE = (
    "{%- if tools %}<|im_start|>system\ntools: {{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{%- set ns = namespace(last=0) %}"
    "{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{%- for m in messages %}<|im_start|>{{ m.role + '\n' }}"
    "{%- set text = m.content or '' %}"
    "{%- if m.role == 'assistant' and '</think>' in text and loop.index0 < ns.last %}"
    "{%- set text = text.split('</think>')[-1].lstrip('\n') %}{% endif %}{{ text }}"
    "{%- for call in m.tool_calls or [] %}\n<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
)


def save_tiny_model(path: Path, *, seed: int = 0, context: int = 512, head_dim: int = 16) -> None:
    """Save a Qwen3 with random weights and a byte-level ChatML tokenizer: 119k parameters with heads of 16."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=320,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=head_dim,
        intermediate_size=192,
        tie_word_embeddings=True,
        initializer_range=0.06,
        max_position_embeddings=context,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    )
    model = Qwen3ForCausalLM(config)
    tokenizer = _tokenizer()
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=0)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)


def plain_model(path: Path) -> Any:
    """The same weights under the library's own attention."""
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    return model.eval()


def plain_logprobs(
    model: Any, prompt: Sequence[int], sampled: Sequence[int], *, temperature: float = 1.0, ban_end: bool = True
) -> Tensor:
    """float32 [C]: logprobs of the sampled tokens, by one forward over the whole sequence on its own.

    ban_end: <|im_end|> cannot be sampled, as in `completions.endless`.
    """
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *sampled]])).logits[0, len(prompt) - 1 : -1].float()
    if ban_end:
        logits[:, 2] = -torch.inf
    logp = torch.log_softmax(logits / temperature, dim=-1)
    return logp.gather(1, torch.tensor(sampled)[:, None]).squeeze(1)


def perturbed_model(path: Path, seed: int) -> Any:
    """The model with noise on all weights, large enough that stale keys and values would show."""
    model = plain_model(path)
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.03 * torch.randn(parameter.shape, generator=noise))
    return model


def write_full_policy(folder: Path, model: Any, version: int) -> Path:
    """Write the model's weights as a policy weights file."""
    tensors = {k: v for k, v in model.state_dict().items() if k != "lm_head.weight"}
    file = folder / f"v{version}.safetensors"
    write_policy(file, tensors, kind="full", version=version)
    return file


def lora_model(path: Path) -> Any:
    """The model with a LoRA over every linear layer, which has no effect yet."""
    config = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    return get_peft_model(plain_model(path), config).eval()


def randomize_adapter(adapted: Any, seed: int) -> None:
    """Give the adapter random weights with a large effect."""
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=noise))


def write_adapter_policy(folder: Path, adapted: Any, version: int) -> Path:
    """Write the adapter as a policy weights file."""
    config = adapted.peft_config["default"]
    plain = {k: v for k, v in config.to_dict().items() if not isinstance(v, set)}
    targets = config.target_modules
    plain["target_modules"] = targets if isinstance(targets, str) else sorted(targets)
    file = folder / f"lora{version}.safetensors"
    write_policy(file, get_peft_model_state_dict(adapted), kind="lora", version=version, lora=plain)
    return file


def _tokenizer() -> PreTrainedTokenizerFast:
    bpe = Tokenizer(models.BPE())
    bpe.normalizer = normalizers.NFC()
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=306,
        special_tokens=_SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(["What is 12 + 34?", "2+4=06; 1+3+0=04; answer 46", "at least 40"] * 20, trainer)
    bpe.add_tokens(_PLAIN_MARKS)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=_TEMPLATE
    )
