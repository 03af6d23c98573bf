"""The records of a rollout's chat calls, as the inference service keeps them and hands them over at its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from synth.images.prompt_image import PromptImage
from synth.trajectories.masks import TokenMasks
from synth.trajectories.packing import (
    Bool,
    Float32,
    Int32,
    images_from_array,
    images_to_array,
    pack_arrays,
    unpack_arrays,
)
from synth.transcripts.shorten import json_size
from synth.transcripts.transcript import RecordedChat


@dataclass(frozen=True)
class CompletionRecord:
    """One recorded chat call.

    prompt_ids: int32 [P]. sampled_ids: int32 [C], the stop token included when it was sampled.
    logprobs: float32 [C], nats, of the sampled tokens under the policy that sampled them (T applied).
    versions: int32 [C], the policy version that sampled each token.
    sampled: bool [C], False if a token was forced (a thinking budget, a tool call, a grammar that allowed no other) and
    so is not trained. finish_reason: "stop", "length" or "abort". malformed_call: whether the reply has a tool call
    that cannot be read, or whose arguments are no JSON object. out_of_time: whether it is a "length" because the time
    of its rollout was over. masks: for each of the C sampled tokens, the other tokens that were possible in its place;
    None if any were. images: the prompt's images, in the order of their tokens. images_dropped: how many further images
    the messages had, beyond the limit of a message or a prompt. processor: the fingerprint of the processor that
    computed the patches (`ImageProcessor.fingerprint`), "" for a text model. chat: the call as text, for people;
    nothing is trained on it.
    """

    prompt_ids: Int32
    sampled_ids: Int32
    logprobs: Float32
    versions: Int32
    sampled: Bool
    finish_reason: str
    malformed_call: bool = False
    out_of_time: bool = False
    masks: TokenMasks | None = None
    images: tuple[PromptImage, ...] = ()
    processor: str = ""
    chat: RecordedChat | None = None
    images_dropped: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        arrays = (self.prompt_ids, self.sampled_ids, self.logprobs, self.versions, self.sampled)
        masks = self.masks.nbytes if self.masks is not None else 0
        return sum(a.nbytes for a in arrays) + masks + (json_size(self.chat) if self.chat is not None else 0)


def records_to_bytes(records: list[CompletionRecord]) -> bytes:
    """Return the records of one closed cid, in the order of their calls, as one safetensors body."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    for i, r in enumerate(records):
        arrays[f"{i}.prompt_ids"] = r.prompt_ids
        arrays[f"{i}.sampled_ids"] = r.sampled_ids
        arrays[f"{i}.logprobs"] = r.logprobs
        arrays[f"{i}.versions"] = r.versions
        arrays[f"{i}.sampled"] = r.sampled
        masks = r.masks.arrays() if r.masks is not None else {}
        arrays |= {f"{i}.{name}": array for name, array in masks.items()}
    # As an array, not in the description: that may hold 100 MB at most, and a conversation has any size.
    arrays["chats"] = np.frombuffer(msgspec.json.encode([r.chat for r in records]), np.uint8)
    arrays["images"] = images_to_array([(r.processor, r.images) for r in records])
    malformed = [i for i, r in enumerate(records) if r.malformed_call]
    late = [i for i, r in enumerate(records) if r.out_of_time]
    return pack_arrays(
        arrays,
        {
            "finish_reasons": [r.finish_reason for r in records],
            "malformed_calls": malformed,
            "out_of_time": late,
            "images_dropped": [r.images_dropped for r in records],
        },
    )


def records_from_bytes(body: bytes) -> list[CompletionRecord]:
    """Read the result of `records_to_bytes`."""
    arrays, meta = unpack_arrays(body)
    chats = msgspec.json.decode(arrays["chats"].tobytes(), type=list[RecordedChat | None])
    shown = images_from_array(arrays["images"])
    return [
        CompletionRecord(
            *(arrays[f"{i}.{k}"] for k in ("prompt_ids", "sampled_ids", "logprobs", "versions", "sampled")),
            finish_reason=reason,
            malformed_call=i in meta["malformed_calls"],
            out_of_time=i in meta["out_of_time"],
            masks=TokenMasks.from_arrays(arrays, prefix=f"{i}."),
            images=images,
            processor=processor,
            chat=chat,
            images_dropped=meta.get("images_dropped", [0] * (i + 1))[i],
        )
        for i, (reason, chat, (processor, images)) in enumerate(zip(meta["finish_reasons"], chats, shown, strict=True))
    ]


class ClosedRollout(msgspec.Struct, frozen=True, array_like=True):
    """One of the rollouts that were closed together: the result of `records_to_bytes`, or why there are no records."""

    records: bytes = b""
    refused: str | None = None


def closed_to_bytes(closed: list[ClosedRollout]) -> bytes:
    """Encode rollouts that were closed together, in the requested order."""
    return msgspec.msgpack.encode(closed)


def closed_from_bytes(body: bytes) -> list[ClosedRollout]:
    """Read the result of `closed_to_bytes`. Raises `msgspec.DecodeError` on anything else."""
    return msgspec.msgpack.decode(body, type=list[ClosedRollout])
