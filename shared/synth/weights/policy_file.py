"""The policy weights file, which a trainer publishes and an inference engine loads and then proves.

One safetensors file. A "full" policy holds the model's state dict by its Hugging Face names (a tied LM head is
omitted); a "lora" policy holds the adapter alone by peft's names. The header has the kind and the policy version, and
one blake3 digest per tensor, so that a reader can prove the weights that it serves.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import torch
from blake3 import blake3
from safetensors import SafetensorError
from torch import Tensor

from synth.weights.tensor_file import FileDigest, load_tensors, save_tensors

Kind = Literal["full", "lora"]


class WeightsError(Exception):
    """A weights file that cannot be read, or whose tensors do not match its header."""


@dataclass(frozen=True)
class PolicyWeights:
    """The weights of one policy version.

    tensors: by name, on the CPU. lora: peft's adapter configuration, for kind "lora" only.
    digests: blake3 (hex) of each tensor's bytes, as the header gives them.
    """

    kind: Kind
    version: int
    tensors: dict[str, Tensor]
    digests: dict[str, str]
    lora: dict[str, Any] | None = field(default=None)


@dataclass(frozen=True)
class WrittenPolicy:
    """A weights file that is on disk. digests: of its tensors, as its header carries them. file: of the whole file."""

    digests: dict[str, str]
    file: FileDigest


def tensor_digests(tensors: dict[str, Tensor]) -> dict[str, str]:
    """Return blake3 (hex) over the row-major bytes of each tensor; dtype and shape are part of the digest.

    Tensors on a device are copied to the CPU one at a time.
    """
    return {name: _digest(tensor) for name, tensor in tensors.items()}


def mismatched(tensors: dict[str, Tensor], digests: dict[str, str]) -> list[str]:
    """Return the names whose tensor is missing, unexpected, or differs from its digest; none proves the weights."""
    computed = tensor_digests(tensors)
    return sorted(n for n in computed.keys() | digests.keys() if computed.get(n) != digests.get(n))


def write_policy(
    path: Path,
    tensors: dict[str, Tensor],
    *,
    kind: Kind,
    version: int,
    lora: dict[str, Any] | None = None,
) -> WrittenPolicy:
    """Write a policy weights file whole: temporary file, fsync, rename, fsync of the folder.

    The same tensors give the same bytes.
    """
    plain = {n: t.detach().to("cpu").contiguous() for n, t in sorted(tensors.items())}
    digests = tensor_digests(plain)
    header = {"kind": kind, "version": version, "lora": lora, "digests": digests}
    # One key: safetensors writes several header keys in no fixed order, and the bytes are to repeat.
    file = save_tensors(path, plain, header={"synth": json.dumps(header, sort_keys=True)})
    return WrittenPolicy(digests=digests, file=file)


def read_policy(path: Path, *, verify: bool = True) -> PolicyWeights:
    """Read a policy weights file; with `verify`, every tensor against its digest.

    Raises `WeightsError` on a file that is not one, is cut short, or holds a tensor that was changed.
    """
    try:
        tensors, headers = load_tensors(path)
        header = cast(dict[str, Any], json.loads(headers["synth"]))
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise WeightsError(f"{path.name}: not a policy weights file: {error}") from error
    policy = PolicyWeights(
        kind=header["kind"],
        version=header["version"],
        tensors=tensors,
        digests=header["digests"],
        lora=header["lora"],
    )
    if verify and (wrong := mismatched(tensors, policy.digests)):
        raise WeightsError(
            f"{path.name}: {len(wrong)} of {len(policy.digests)} tensors differ from their digest, "
            f"first {wrong[0]!r}; expected the bytes that the trainer wrote; fetch the file again"
        )
    return policy


def merge_lora(base: dict[str, Tensor], adapter: dict[str, Tensor], config: dict[str, Any]) -> dict[str, Tensor]:
    """Fold a LoRA adapter into its base: `W + scale · B A`, in float32, scale = alpha/r (alpha/√r for rsLoRA).

    base: state dict by Hugging Face names. adapter: by peft's names. config: peft's adapter configuration.
    Returns a new float32 state dict; `base` is not changed. Raises `WeightsError` on an adapter that does
    not fit, or of a kind whose merge is not a plain sum (DoRA, per-layer ranks, trained biases or modules).
    """
    _refuse_unmergeable(config)
    rank = int(config["r"])
    scale = float(config["lora_alpha"]) / (rank**0.5 if config.get("use_rslora") else rank)
    merged = {name: tensor.to(torch.float32, copy=True) for name, tensor in base.items()}
    for name, down in adapter.items():
        if not name.endswith(".lora_A.weight"):
            continue
        stem = name.removesuffix(".lora_A.weight")
        up = adapter.get(f"{stem}.lora_B.weight")
        target = f"{stem.removeprefix('base_model.model.')}.weight"
        if up is None or target not in merged:
            raise WeightsError(f"adapter tensor {name!r} has no counterpart in the base ({target!r})")
        merged[target] += scale * (up.float() @ down.float())
    return merged


def _digest(tensor: Tensor) -> str:
    plain = tensor.detach().to("cpu").contiguous()
    head = f"{plain.dtype}{tuple(plain.shape)}".encode()
    body = plain.reshape(-1).view(torch.uint8).numpy()
    # Below a megabyte threads cost more than they save; above, one core hashes slower than a disk reads.
    threads = blake3.AUTO if body.nbytes > 1 << 20 else 1
    return blake3(head, max_threads=threads).update(body.data).hexdigest()


def _refuse_unmergeable(config: dict[str, Any]) -> None:
    unsupported = [
        key
        for key in ("use_dora", "fan_in_fan_out", "rank_pattern", "alpha_pattern", "modules_to_save")
        if config.get(key)
    ]
    if config.get("bias", "none") != "none":
        unsupported.append("bias")
    if unsupported:
        raise WeightsError(
            f"an adapter with {', '.join(unsupported)} cannot be merged; expected a plain LoRA adapter; "
            "continue it with its own rank and targets, or start from the base model"
        )
