"""The names of a model's tensors in its files, which other engines load, and their tensors in memory.

transformers keeps the experts of a layer as one tensor, and its files have each expert's own (`experts.3.up_proj`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

#: The part of the model's tensor that a file's tensor is: () for the whole.
Part = tuple[int | slice, ...]


def published_parts(model: Any, shapes: Mapping[str, torch.Size]) -> dict[str, list[tuple[str, Part]]]:
    """Return, for each tensor of a model, the tensors of a file that form it, and the place of each in it.

    shapes: of the model's tensors. Raises `ValueError` for a tensor whose parts are not rows of it.
    """
    from transformers.core_model_loading import revert_weight_conversion

    names, probes, first = list(shapes), dict[str, Tensor](), list[int]()
    total = 0
    for name, shape in shapes.items():
        # Each row of each tensor has a number of its own, so that a part shows which rows it took.
        rows = shape[:2] if len(shape) > 2 else shape[:1]
        numbered = torch.arange(total, total + rows.numel()).view(rows)
        probes[name] = numbered[..., None].expand(*rows, 2) if len(shape) > 1 else numbered
        first.append(total)
        total += rows.numel()
    starts = torch.tensor(first)
    parts: dict[str, list[tuple[str, Part]]] = {name: [] for name in names}
    reverted = cast(dict[str, Tensor], revert_weight_conversion(model, probes))
    for published, probe in reverted.items():
        begin = int(probe.flatten()[0])
        owner = int(torch.searchsorted(starts, begin, right=True)) - 1
        name, shape = names[owner], shapes[names[owner]]
        parts[name].append((published, _part(published, probe, probes[name], shape, begin - first[owner])))
    return parts


def _part(published: str, probe: Tensor, whole: Tensor, shape: torch.Size, row: int) -> Part:
    if probe.shape == whole.shape and bool((probe == whole).all()):
        return ()
    rows = probe.reshape(-1, 2)[:, 0] if probe.numel() % 2 == 0 else probe.flatten()
    in_a_row = bool((rows == torch.arange(len(rows)) + rows[0]).all())
    if len(shape) != 3 or not in_a_row or row % shape[1] + len(rows) > shape[1]:
        raise ValueError(f"{published} is derived from its tensor in memory in an unknown way")
    return (row // shape[1], slice(row % shape[1], row % shape[1] + len(rows)))


def published_tensors(parts: Mapping[str, list[tuple[str, Part]]], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a file, as views of the model's: a copy into one changes the model."""
    return {
        published: tensors[name][part] if part else tensors[name] for name in tensors for published, part in parts[name]
    }


def tensor_in_memory(parts: list[tuple[str, Part]], shape: torch.Size, published: Mapping[str, Tensor]) -> Tensor:
    """Build a model's tensor from a file's tensors. Raises `KeyError` when one is missing."""
    if len(parts) == 1 and not parts[0][1]:
        return published[parts[0][0]]
    whole = torch.empty(shape, dtype=published[parts[0][0]].dtype)
    for name, part in parts:
        whole[part] = published[name]
    return whole
