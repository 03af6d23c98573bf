"""Makes a tiny real Qwen3-VL, with tokenizer, chat template and image processor: a base that learns to look.

The recipe, measured in the project's research: vision weights drawn with a spread of 1/√fan-in and wide position
embeddings, so that a random tower maps different images to different features.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from synth.errors import UserError
from synth.local.tiny_models.qwen3 import INITIALIZER_RANGE, MadeModel, check_sizes, language_config, save_whole
from synth.local.tiny_models.tokenizer import make_tokenizer

_PATCH, _MERGE = 16, 2
_POSITION_SPREAD = 0.2


def make_tiny_qwen3_vl(
    out_dir: Path,
    *,
    seed: int = 0,
    hidden: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    context: int = 4096,
    max_side: int = 128,
    thinking: bool = False,
) -> MadeModel:
    """Write a Hugging Face directory with random weights; the same for the same seed.

    hidden, layers: of the language model and of the vision tower. max_side: pixels; a larger image is shrunk to as many
    as a square of this side has. thinking: with the chat template of a Thinking variant, which begins each reply inside
    its reasoning. Raises UserError when `out_dir` is there already, or the sizes do not fit.
    """
    check_sizes(out_dir, hidden=hidden, layers=layers, heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    token = _PATCH * _MERGE
    if max_side < token:
        raise UserError(f"max_side = {max_side}", expected=f"{token} or more", where="--max-side")
    if head_dim % 8 or hidden % (4 * heads):
        raise UserError(
            f"head_dim = {head_dim} and hidden = {hidden} cannot be divided among the axes of an image",
            expected=f"a multiple of 8, and one of {4 * heads}",
            where="--head-dim" if head_dim % 8 else "--hidden",
        )
    # These take seconds to import, and most commands of the CLI need neither.
    import torch
    from transformers import GenerationConfig, Qwen3VLConfig, Qwen3VLForConditionalGeneration
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    tokenizer = make_tokenizer(context, vision=True, thinking=thinking)
    ids = tokenizer.get_vocab()
    vocab = -(-len(tokenizer) // 64) * 64
    eos, pad = ids["<|im_end|>"], ids["<|endoftext|>"]
    side = head_dim // 8
    config = Qwen3VLConfig(
        text_config={
            **language_config(hidden=hidden, layers=layers, heads=heads, kv_heads=kv_heads, head_dim=head_dim),
            "vocab_size": vocab,
            "intermediate_size": 3 * hidden,
            "max_position_embeddings": context,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000.0,
                "mrope_section": [head_dim // 2 - 2 * side, side, side],
                "mrope_interleaved": True,
            },
            "eos_token_id": eos,
            "pad_token_id": pad,
        },
        vision_config={
            "depth": layers,
            "hidden_size": hidden,
            "num_heads": heads,
            "intermediate_size": 2 * hidden,
            "out_hidden_size": hidden,
            "patch_size": _PATCH,
            "temporal_patch_size": 2,
            "spatial_merge_size": _MERGE,
            "num_position_embeddings": (max_side // _PATCH) ** 2,
            "deepstack_visual_indexes": [0],
            "initializer_range": INITIALIZER_RANGE,
            "dtype": "float32",
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3VLForConditionalGeneration(config)
        _spread_vision_weights(model.model.visual)
    model.generation_config = GenerationConfig(eos_token_id=eos, pad_token_id=pad, do_sample=True)
    processor = Qwen2VLImageProcessorPil(
        patch_size=_PATCH,
        merge_size=_MERGE,
        temporal_patch_size=2,
        size={"shortest_edge": token * token, "longest_edge": max_side * max_side},
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )
    save_whole(out_dir, model, tokenizer, processor)
    return MadeModel(out_dir, sum(p.numel() for p in model.parameters()), vocab)


def _spread_vision_weights(visual: Any) -> None:
    import torch

    with torch.no_grad():
        for name, parameter in visual.named_parameters():
            if name == "pos_embed.weight":
                parameter.normal_(0, _POSITION_SPREAD)
            elif parameter.dim() > 1:
                parameter.normal_(0, (parameter.numel() / parameter.shape[0]) ** -0.5)
