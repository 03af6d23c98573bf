"""Makes a tiny real Qwen3 with its own tokenizer: a base model that learns arithmetic in a minute on two cores.

The recipe, measured in the project's research: byte-level BPE over synthetic chats with Qwen's split pattern (each
digit a token of its own) and its 26 special tokens; initializer_range 0.06, by far the biggest lever.
"""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from synth.errors import Problem, UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Qwen2's and Qwen3's: digits are split one by one, so that a sum's columns line up with tokens.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CONTROL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
# Qwen's own flag: these are tokens of their own, yet stay visible when special tokens are skipped.
_VISIBLE = [
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
]
# ChatML as Qwen3 writes it: tools in the system turn, tool results as user turns, earlier thoughts stripped.
# Unlike Qwen3's, it adds nothing to the prompt unless thinking is asked for.
_TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- '# Tools\\n\\nYou may call one or more functions.\\n\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
{{- '\\n</tools>\\n\\nFor each call, return {"name": ..., "arguments": ...} within <tool_call></tool_call>.' }}
{{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last_user=-1) %}
{%- for message in messages %}
{%- if message.role == 'user' %}{%- set ns.last_user = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
{%- set content = message.content if message.content is string else '' %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}
{%- if loop.index0 < ns.last_user and '</think>' in content %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{{- '<|im_start|>assistant\\n' + content }}
{%- for call in message.tool_calls or [] %}
{%- set function = call.function if call.function else call %}
{%- if content or not loop.first %}{{- '\\n' }}{%- endif %}
{{- '<tool_call>\\n{"name": "' + function.name + '", "arguments": ' }}
{{- function.arguments if function.arguments is string else function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is true %}{{- '<think>\\n' }}{%- endif %}
{%- endif %}"""


@dataclass(frozen=True)
class MadeModel:
    """What was made. parameters: trainable ones, tied embeddings counted once. vocab: rows of the embedding."""

    path: Path
    parameters: int
    vocab: int


def make_tiny_qwen3(
    out_dir: Path,
    *,
    seed: int = 0,
    hidden: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    intermediate: int | None = None,
    context: int = 4096,
    initializer_range: float = 0.06,
) -> MadeModel:
    """Write a Hugging Face directory with random weights, tokenizer and chat template; the same for the same seed.

    intermediate: 3 x hidden when None. context: positions. The defaults have 119,168 parameters. Raises UserError
    when `out_dir` is there already, or the sizes do not fit.
    """
    _check(out_dir, hidden=hidden, layers=layers, heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    # These take seconds to import, and most commands of the CLI need neither.
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    tokenizer = _tokenizer(context)
    vocab = -(-len(tokenizer) // 64) * 64
    ids = tokenizer.get_vocab()
    eos, pad = ids["<|im_end|>"], ids["<|endoftext|>"]
    config = Qwen3Config(
        vocab_size=vocab,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=intermediate or 3 * hidden,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        initializer_range=initializer_range,
        eos_token_id=eos,
        pad_token_id=pad,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=eos, pad_token_id=pad, do_sample=True)
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    # The registry sees a directory only once it is whole: names with a leading dot are no model ids.
    with tempfile.TemporaryDirectory(prefix=".", dir=out_dir.parent) as scratch:
        whole = Path(scratch) / "model"
        model.save_pretrained(whole)
        tokenizer.save_pretrained(whole)
        whole.rename(out_dir)
    return MadeModel(out_dir, sum(p.numel() for p in model.parameters()), vocab)


def _check(out_dir: Path, *, hidden: int, layers: int, heads: int, kv_heads: int, head_dim: int) -> None:
    problems: list[Problem] = []
    if out_dir.exists():
        problems.append(
            Problem(
                what="this directory exists already",
                fix="--replace makes it anew, --name makes another",
                where=str(out_dir),
            )
        )
    sizes = {"hidden": hidden, "layers": layers, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    problems += [
        Problem(what=f"{name} = {size}", expected="1 or more", where=f"--{name.replace('_', '-')}")
        for name, size in sizes.items()
        if size < 1
    ]
    if kv_heads >= 1 and heads % kv_heads:
        problems.append(
            Problem(what=f"{heads} heads cannot share {kv_heads} kv heads", expected="a divisor", where="--kv-heads")
        )
    if head_dim % 2:
        problems.append(Problem(what=f"head_dim = {head_dim}", expected="an even number", where="--head-dim"))
    if problems:
        raise UserError(problems)


def _tokenizer(context: int) -> PreTrainedTokenizerFast:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe: Any = Tokenizer(models.BPE())
    bpe.normalizer = normalizers.NFC()
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    # Every byte is in the alphabet, so any text can be encoded; 512 is never reached with so few words.
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(_chats(), trainer)
    bpe.add_tokens([AddedToken(t, special=True, normalized=False) for t in _CONTROL])
    bpe.add_tokens([AddedToken(t, special=False, normalized=False) for t in _VISIBLE])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=_TEMPLATE,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )


def _chats() -> list[str]:
    """4000 chats about sums, without their special tokens: what the merges are learned from, the same for any seed."""
    chance = random.Random(0)
    texts: list[str] = []
    for _ in range(4000):
        a, b = chance.randint(10, 99), chance.randint(10, 99)
        units, tens = a % 10 + b % 10, a // 10 + b // 10
        reply = chance.choice(
            [
                f"at least {tens * 10}",
                f"{a % 10}+{b % 10}+0={units:02d}; {a // 10}+{b // 10}+{units // 10}={tens + units // 10:02d}; "
                f"answer {a + b}",
            ]
        )
        texts += ["user\n", f"What is {a} + {b}?", "assistant\n", reply]
    return texts
