"""The tokenizer of a tiny model: byte-level BPE over synthetic chats, with Qwen's split pattern and special tokens.

Each digit is a token of its own, as in Qwen3, so that a sum's columns line up with tokens.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

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
# Unlike Qwen3's, it adds nothing to the prompt unless thinking is requested.
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
# The parts of a message in their order, with images written as Qwen3-VL does.
_TEXT_CONTENT = "{%- set content = message.content if message.content is string else '' %}"
_PARTS_CONTENT = """\
{%- set content = show(message.content) %}"""
_SHOW = """\
{%- macro show(content) %}
{%- if content is string %}{{- content }}
{%- else %}
{%- for part in content or [] %}
{%- if part.type == 'image' %}{{- '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- else %}{{- part.text }}
{%- endif %}
{%- endfor %}
{%- endif %}
{%- endmacro %}
"""
_VISION_TEMPLATE = _SHOW + _TEMPLATE.replace(_TEXT_CONTENT, _PARTS_CONTENT)
# As in the Thinking variants, each reply begins inside its reasoning, and thoughts after the last question stay.
_ASKED_OPENING = "{%- if enable_thinking is defined and enable_thinking is true %}{{- '<think>\\n' }}{%- endif %}"
_ALWAYS_OPENING = "{{- '<think>\\n' }}"
_STRIPPED = """\
{%- if loop.index0 < ns.last_user and '</think>' in content %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}"""
_KEPT = """\
{%- set thought = '' %}
{%- if '</think>' in content %}
{%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{%- if loop.index0 > ns.last_user and (loop.last or thought) %}
{%- set content = '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') %}
{%- endif %}"""


def chat_template(*, vision: bool = False, thinking: bool = False) -> str:
    """Return the chat template of a tiny model. thinking: of one that always thinks."""
    template = _VISION_TEMPLATE if vision else _TEMPLATE
    return template.replace(_ASKED_OPENING, _ALWAYS_OPENING).replace(_STRIPPED, _KEPT) if thinking else template


def make_tokenizer(context: int, *, vision: bool = False, thinking: bool = False) -> PreTrainedTokenizerFast:
    """Make a tokenizer of some 300 tokens with Qwen3's special ones and a chat template; always the same.

    context: its declared maximum length in tokens. vision: for a model that sees, with the words of its tasks.
    thinking: with the template of a model that always thinks.
    """
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
    bpe.train_from_iterator([*_sums(), *(_pictures() if vision else ())], trainer)
    bpe.add_tokens([AddedToken(t, special=True, normalized=False) for t in _CONTROL])
    bpe.add_tokens([AddedToken(t, special=False, normalized=False) for t in _VISIBLE])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=chat_template(vision=vision, thinking=thinking),
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )


def _sums() -> list[str]:
    """Return 4000 chats about sums, without special tokens: the text for learning the merges, the same for any seed."""
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


def _pictures() -> list[str]:
    """Return chats about pictures and about the moves of a game, without their special tokens."""
    colours = ("red", "green", "blue", "yellow", "white", "black", "orange", "purple")
    moves = ("noop", "move_left", "move_right", "move_up", "move_down", "do", "sleep", "place_table", "place_stone")
    texts: list[str] = []
    for colour in colours:
        texts += ["user\n", "What colour is the square?", "assistant\n", f"{colour} square", "A square somewhere."] * 50
    for move in moves:
        texts += [f'{{"actions": ["{move}"]}}', move] * 50
    return texts
