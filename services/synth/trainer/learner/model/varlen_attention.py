"""Attention over packed rows: a sequence attends only to itself, and no [length × length] mask is made.

transformers separates packed sequences by such a mask. Its memory and time grow with the square of the whole row, and
the flash kernels cannot be used with it. Here the kernel gets the ends of the sequences, or is called once for each.

q_BHLD, k_BHLD, v_BHLD: B = 1 row of L packed tokens, or B padded rows, which need a causal mask only. H heads of
dimension D.
"""

from __future__ import annotations

import inspect
import itertools
import logging
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.utils.import_utils import is_flash_attn_2_available, is_flash_attn_3_available

from synth.runtime.lines import split_lines
from synth.windowed_attention import causal_attention

log = logging.getLogger(__name__)

BY_SEQUENCE, VARLEN = "synth_by_sequence", "synth_varlen"
_TOLERANCE = 2e-2


def varlen_kwargs(position_ids_BL: Tensor | None) -> dict[str, Any]:
    """Return the arguments that give a model's forward the ends of the sequences in a packed row; none for padded rows.

    position_ids_BL: int64 [1, L], restarting at 0 with each sequence. The names are the ones that transformers' flash
    attention reads; `bounds`, the same numbers on the CPU, is for `attention_by_sequence`.
    """
    if position_ids_BL is None:
        return {}
    starts = (position_ids_BL[0] == 0).nonzero().flatten().tolist()
    bounds = (*starts, position_ids_BL.shape[1])
    longest = max(b - a for a, b in itertools.pairwise(bounds))
    cu_seqlens = torch.tensor(bounds, dtype=torch.int32, device=position_ids_BL.device)
    return {
        "cu_seq_lens_q": cu_seqlens,
        "cu_seq_lens_k": cu_seqlens,
        "max_length_q": longest,
        "max_length_k": longest,
        "bounds": bounds,
    }


def choose_attention(model_config: Any, device: torch.device, dtype: torch.dtype) -> str:
    """Return the attention implementation for a model on a device, by its name in transformers; logs which, and why.

    dtype: of the computation. The fast kernels are for bfloat16 on a GPU; torch's must agree there with
    `attention_by_sequence`.
    """
    model_config = model_config.get_text_config()
    kinds = set(getattr(model_config, "layer_types", None) or ())
    if kinds - {"full_attention", "sliding_attention"}:
        return _log_choice("sdpa", f"the model has {', '.join(sorted(kinds))}")
    if "sliding_attention" in kinds or getattr(model_config, "sliding_window", None):
        return _log_choice(BY_SEQUENCE, "the model attends within windows")
    if device.type != "cuda" or dtype != torch.bfloat16:
        return _log_choice(BY_SEQUENCE, f"there is no flash kernel for {dtype} on {device.type}")
    if is_flash_attn_3_available():
        return _log_choice("flash_attention_3", "flash-attn 3 is installed")
    if is_flash_attn_2_available():
        return _log_choice("flash_attention_2", "flash-attn 2 is installed")
    if getattr(model_config, "attn_logit_softcapping", None):
        return _log_choice(BY_SEQUENCE, "the model caps its scores")
    fault = _varlen_fault(device)
    if fault is not None:
        return _log_choice(BY_SEQUENCE, f"torch's varlen attention cannot be used: {fault}")
    return _log_choice(VARLEN, "torch's varlen attention agrees with attention by sequence")


def attention_by_sequence(
    module: nn.Module,
    q_BHLD: Tensor,
    k_BHLD: Tensor,
    v_BHLD: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    bounds: tuple[int, ...] | None = None,
    sliding_window: int | None = None,
    s_aux: Tensor | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Compute causal attention with one call of torch's kernel for each packed sequence. Returns [B, L, H, D].

    sliding_window: positions that one attends to at most, of a layer that has a window. s_aux: the layer's sinks, [H].
    softcap: of the scores.
    """
    bounds = bounds or (0, q_BHLD.shape[2])
    parts = [
        causal_attention(
            q_BHLD[:, :, a:b],
            k_BHLD[:, :, a:b],
            v_BHLD[:, :, a:b],
            scale=scaling,
            window=sliding_window,
            sinks_H=s_aux,
            cap=softcap,
            dropout=dropout,
        )
        for a, b in itertools.pairwise(bounds)
    ]
    out_BHLD = parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
    # Some models take a view of it.
    return out_BHLD.transpose(1, 2).contiguous(), None


def varlen_attention(
    module: nn.Module,
    q_BHLD: Tensor,
    k_BHLD: Tensor,
    v_BHLD: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Compute causal attention over a packed row in one call of torch's own flash kernel. Returns [B, L, H, D]."""
    if cu_seq_lens_q is None or dropout:
        return attention_by_sequence(
            module, q_BHLD, k_BHLD, v_BHLD, attention_mask, scaling=scaling, dropout=dropout, bounds=more.get("bounds")
        )
    from torch.nn.attention.varlen import varlen_attn

    # Under autocast the norms of queries and keys return float32, and autocast does not cast for this kernel.
    q_LHD, k_LHD, v_LHD = (x[0].transpose(0, 1).to(torch.bfloat16) for x in (q_BHLD, k_BHLD, v_BHLD))
    known: dict[str, Any] = {"scale": scaling, "enable_gqa": True}
    takes = inspect.signature(varlen_attn).parameters
    options = {name: value for name, value in known.items() if name in takes}
    options |= {"is_causal": True} if "is_causal" in takes else {"window_size": (-1, 0)}
    if "scale" not in takes and scaling is not None:
        # This release divides by √D itself.
        q_LHD = q_LHD * (scaling * q_LHD.shape[-1] ** 0.5)
    out_LHD: Any = varlen_attn(
        q_LHD, k_LHD, v_LHD, cu_seq_lens_q, cu_seq_lens_q, max_length_q or 0, max_length_q or 0, **options
    )
    return out_LHD[None], None


def _log_choice(name: str, why: str) -> str:
    log.info("attention: %s, as %s", name, why)
    return name


def _varlen_fault(device: torch.device) -> str | None:
    """Return why torch's varlen kernel cannot be used here; None if it agrees with `attention_by_sequence`."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((1, 4, 96, 64), (1, 2, 96, 64), (1, 2, 96, 64))
    positions = torch.cat([torch.arange(n) for n in (5, 64, 27)])[None].to(device)
    results: list[list[Tensor]] = []
    for attend in (attention_by_sequence, varlen_attention):
        inputs = [torch.randn(s, generator=generator.manual_seed(i)) for i, s in enumerate(shapes)]
        inputs = [x.to(device, torch.bfloat16).requires_grad_() for x in inputs]
        q_BHLD, k_BHLD, v_BHLD = inputs
        try:
            out, _ = attend(nn.Identity(), q_BHLD, k_BHLD, v_BHLD, None, scaling=0.1, **varlen_kwargs(positions))
            out.float().square().sum().backward()
        except (ImportError, RuntimeError, TypeError, NotImplementedError) as error:
            return f"{type(error).__name__}: {split_lines(str(error))[0]}"
        results.append([out, *(x.grad for x in inputs if x.grad is not None)])
    worst = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(*results, strict=True))
    return None if worst <= _TOLERANCE else f"it differs by {worst:.2g} from attention by sequence"


AttentionInterface.register(BY_SEQUENCE, attention_by_sequence)
AttentionInterface.register(VARLEN, varlen_attention)
