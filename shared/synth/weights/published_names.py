"""The names of a model's tensors in its files, which other engines load, against those of the model in memory.

transformers keeps the experts of a layer as one tensor, and its files have each expert's own (`experts.3.up_proj`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

#: Where a tensor of a file lies in the model's: () where it is the whole.
Part = tuple[int | slice, ...]


def published_parts(model: Any, shapes: Mapping[str, torch.Size]) -> dict[str, list[tuple[str, Part]]]:
    """By the name of each tensor of a model, the tensors of a file that it is made of, and where each lies in it.

    shapes: of the model's tensors. Raises `ValueError` for a tensor whose parts are not rows of it.
    """
    from transformers.core_model_loading import revert_weight_conversion

    names, probes, first = list(shapes), dict[str, Tensor](), list[int]()
    total = 0
    for name, shape in shapes.items():
        # Each row of each tensor has a number of its own, so that a part says which rows it took.
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
        raise ValueError(f"{published} is made of its tensor in memory in a way that is not known here")
    return (row // shape[1], slice(row % shape[1], row % shape[1] + len(rows)))


def published_tensors(parts: Mapping[str, list[tuple[str, Part]]], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a file, as views of the model's: what is copied into one is in the model."""
    return {
        published: tensors[name][part] if part else tensors[name] for name in tensors for published, part in parts[name]
    }


def tensor_in_memory(parts: list[tuple[str, Part]], shape: torch.Size, published: Mapping[str, Tensor]) -> Tensor:
    """A model's tensor, put together from those of a file. Raises `KeyError` when one is missing."""
    if len(parts) == 1 and not parts[0][1]:
        return published[parts[0][0]]
    whole = torch.empty(shape, dtype=published[parts[0][0]].dtype)
    for name, part in parts:
        whole[part] = published[name]
    return whole
