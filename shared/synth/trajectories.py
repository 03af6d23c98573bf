"""What was sampled: completion records, the trajectories made of them, and the batches that are trained.

All three are safetensors (ragged: flat arrays and offsets), never JSON: a thousandth of the cost, and
readable from torch without a copy. Nothing here is ever detokenised and encoded again.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors.numpy import load as _load
from safetensors.numpy import save as _save

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class CompletionRecord:
    """One recorded chat call.

    prompt_ids: int32 [P]. sampled_ids: int32 [C], the stop token included when it was sampled.
    logprobs: float32 [C], nats, of the sampled tokens under the policy that sampled them (T applied).
    versions: int32 [C], the policy version that sampled each token.
    sampled: bool [C], False where a token was forced (a thinking budget, a grammar) and so is not trained.
    finish_reason: "stop", "length" or "abort".
    """

    prompt_ids: Int32
    sampled_ids: Int32
    logprobs: Float32
    versions: Int32
    sampled: Bool
    finish_reason: str


@dataclass(frozen=True)
class Branch:
    """One linear token segment of a rollout: what the trainer sees as one sequence.

    tokens: int32 [T], prompt first. loss_mask: bool [T], True on sampled tokens only.
    logprobs: float32 [T], 0 where the mask is False. versions: int32 [T], -1 where the mask is False.
    """

    tokens: Int32
    loss_mask: Bool
    logprobs: Float32
    versions: Int32


class RolloutMeta(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout of a batch: who it was and what it earned."""

    rollout_id: str
    seed: int
    group: int
    reward: float


class BatchMeta(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch says of itself, carried in its safetensors header.

    temperature: of the sampling; the trainer divides its logits by it (decision 25).
    groups_kept, groups_dropped: groups whose rewards differed; those whose did not, or that were incomplete.
    values: figures of the collection (reward mean, latency, retries …) that `train.step` repeats.
    """

    job_id: str
    iteration: int
    temperature: float
    rollouts: list[RolloutMeta]
    groups_kept: int
    groups_dropped: int
    values: dict[str, float] = msgspec.field(default_factory=dict[str, float])


@dataclass(frozen=True)
class RolloutBatch:
    """The S sequences of one iteration, flat over their T tokens.

    tokens int32 [T] · loss_mask bool [T] · logprobs float32 [T] (behaviour, nats) · versions int32 [T]
    cu_seqlens int32 [S+1] · advantages float32 [S] · rollout int32 [S], the index into `meta.rollouts`.
    Sequences of groups that were dropped are not in it; `meta` counts them.
    """

    tokens: Int32
    loss_mask: Bool
    logprobs: Float32
    versions: Int32
    cu_seqlens: Int32
    advantages: Float32
    rollout: Int32
    meta: BatchMeta

    @property
    def sequences(self) -> int:
        return len(self.cu_seqlens) - 1

    @classmethod
    def build(
        cls, branches: list[Branch], advantages: list[float], rollout: list[int], meta: BatchMeta
    ) -> RolloutBatch:
        """Concatenate branches (one sequence each) into a batch; the three lists are parallel."""
        lengths = [len(b.tokens) for b in branches]
        return cls(
            tokens=_cat([b.tokens for b in branches], np.int32),
            loss_mask=_cat([b.loss_mask for b in branches], np.bool_),
            logprobs=_cat([b.logprobs for b in branches], np.float32),
            versions=_cat([b.versions for b in branches], np.int32),
            cu_seqlens=np.cumsum([0, *lengths], dtype=np.int32),
            advantages=np.asarray(advantages, dtype=np.float32),
            rollout=np.asarray(rollout, dtype=np.int32),
            meta=meta,
        )

    def to_bytes(self) -> bytes:
        """The batch as one safetensors body."""
        return _pack(
            {
                "tokens": self.tokens,
                "loss_mask": self.loss_mask,
                "logprobs": self.logprobs,
                "versions": self.versions,
                "cu_seqlens": self.cu_seqlens,
                "advantages": self.advantages,
                "rollout": self.rollout,
            },
            msgspec.to_builtins(self.meta),
        )

    @classmethod
    def from_bytes(cls, body: bytes) -> RolloutBatch:
        """Read what `to_bytes` wrote. Raises `ValueError` on anything else."""
        arrays, meta = _unpack(body)
        return cls(
            tokens=arrays["tokens"],
            loss_mask=arrays["loss_mask"],
            logprobs=arrays["logprobs"],
            versions=arrays["versions"],
            cu_seqlens=arrays["cu_seqlens"],
            advantages=arrays["advantages"],
            rollout=arrays["rollout"],
            meta=msgspec.convert(meta, BatchMeta),
        )


@dataclass(frozen=True)
class Trajectory:
    """One finished rollout: its branches, its reward, and what the task app said of it (`info`)."""

    branches: list[Branch]
    reward: float
    info: dict[str, Any] = field(default_factory=dict[str, Any])

    def to_bytes(self) -> bytes:
        """The trajectory as one safetensors body."""
        lengths = [len(b.tokens) for b in self.branches]
        return _pack(
            {
                "tokens": _cat([b.tokens for b in self.branches], np.int32),
                "loss_mask": _cat([b.loss_mask for b in self.branches], np.bool_),
                "logprobs": _cat([b.logprobs for b in self.branches], np.float32),
                "versions": _cat([b.versions for b in self.branches], np.int32),
                "cu_seqlens": np.cumsum([0, *lengths], dtype=np.int32),
            },
            {"reward": self.reward, "info": self.info},
        )

    @classmethod
    def from_bytes(cls, body: bytes) -> Trajectory:
        """Read what `to_bytes` wrote."""
        arrays, meta = _unpack(body)
        cu = arrays["cu_seqlens"]
        branches = [
            Branch(*(arrays[k][a:b] for k in ("tokens", "loss_mask", "logprobs", "versions")))
            for a, b in itertools.pairwise(cu)
        ]
        return cls(branches=branches, reward=float(meta["reward"]), info=meta["info"])


def records_to_bytes(records: list[CompletionRecord]) -> bytes:
    """The records of one closed cid, in the order of their calls, as one safetensors body."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    for i, r in enumerate(records):
        arrays[f"{i}.prompt_ids"] = r.prompt_ids
        arrays[f"{i}.sampled_ids"] = r.sampled_ids
        arrays[f"{i}.logprobs"] = r.logprobs
        arrays[f"{i}.versions"] = r.versions
        arrays[f"{i}.sampled"] = r.sampled
    return _pack(arrays, {"finish_reasons": [r.finish_reason for r in records]})


def records_from_bytes(body: bytes) -> list[CompletionRecord]:
    """Read what `records_to_bytes` wrote."""
    arrays, meta = _unpack(body)
    return [
        CompletionRecord(
            *(arrays[f"{i}.{k}"] for k in ("prompt_ids", "sampled_ids", "logprobs", "versions", "sampled")),
            finish_reason=reason,
        )
        for i, reason in enumerate(meta["finish_reasons"])
    ]


class ClosedRollout(msgspec.Struct, frozen=True, array_like=True):
    """One of the rollouts that were closed together: what `records_to_bytes` wrote, or why there are no records."""

    records: bytes = b""
    refused: str | None = None


def closed_to_bytes(closed: list[ClosedRollout]) -> bytes:
    """Rollouts that were closed together, in the order in which they were asked for."""
    return msgspec.msgpack.encode(closed)


def closed_from_bytes(body: bytes) -> list[ClosedRollout]:
    """Read what `closed_to_bytes` wrote. Raises `msgspec.DecodeError` on anything else."""
    return msgspec.msgpack.decode(body, type=list[ClosedRollout])


def branches_of(records: list[CompletionRecord]) -> list[Branch]:
    """The linear segments of a rollout: a call extends the segment that is an exact prefix of its prompt.

    A call whose prompt extends no earlier segment opens a new one (Qwen3's template strips earlier `<think>`
    blocks, so this happens). Every sampled token is in exactly one segment, once.
    """
    branches: list[Branch] = []
    for r in records:
        parent = _longest_prefix(branches, r.prompt_ids)
        start = len(branches[parent].tokens) if parent is not None else 0
        context = r.prompt_ids[start:]
        grown = Branch(
            tokens=np.concatenate([context, r.sampled_ids]).astype(np.int32),
            loss_mask=np.concatenate([np.zeros(len(context), np.bool_), r.sampled]),
            logprobs=np.concatenate([np.zeros(len(context), np.float32), np.where(r.sampled, r.logprobs, 0)]).astype(
                np.float32
            ),
            versions=np.concatenate([np.full(len(context), -1, np.int32), np.where(r.sampled, r.versions, -1)]).astype(
                np.int32
            ),
        )
        if parent is None:
            branches.append(grown)
        else:
            branches[parent] = _join(branches[parent], grown)
    return branches


def _longest_prefix(branches: list[Branch], prompt_ids: Int32) -> int | None:
    best: int | None = None
    for i, b in enumerate(branches):
        fits = len(b.tokens) <= len(prompt_ids) and np.array_equal(b.tokens, prompt_ids[: len(b.tokens)])
        if fits and (best is None or len(b.tokens) > len(branches[best].tokens)):
            best = i
    return best


def _join(a: Branch, b: Branch) -> Branch:
    return Branch(
        tokens=np.concatenate([a.tokens, b.tokens]),
        loss_mask=np.concatenate([a.loss_mask, b.loss_mask]),
        logprobs=np.concatenate([a.logprobs, b.logprobs]),
        versions=np.concatenate([a.versions, b.versions]),
    )


def _cat(parts: list[npt.NDArray[Any]], dtype: Any) -> npt.NDArray[Any]:
    return np.concatenate(parts).astype(dtype) if parts else np.zeros(0, dtype)


def _pack(arrays: dict[str, npt.NDArray[Any]], meta: Any) -> bytes:
    # safetensors writes a non-contiguous array wrongly and says nothing.
    contiguous = {k: np.ascontiguousarray(v) for k, v in arrays.items()}
    return _save(contiguous, metadata={"synth": json.dumps(meta)})


def _unpack(body: bytes) -> tuple[dict[str, npt.NDArray[Any]], Any]:
    header_bytes = int.from_bytes(body[:8], "little")
    try:
        header = cast(dict[str, Any], json.loads(body[8 : 8 + header_bytes]))
        meta = json.loads(header["__metadata__"]["synth"])
        return _load(body), meta
    except (KeyError, ValueError) as error:
        raise ValueError(f"not a body of ours: {error}") from error
