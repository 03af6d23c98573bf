"""The proof that an engine computes with the weights that it was given: the trainer's canary, repeated.

Digests say that the right tensors arrived. A head that was packed before, a cache that outlived its weights, an
adapter on the wrong rows: all of these pass them, and none passes this.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from synth.errors import Permanent
from synth.events import Canary
from synth.inference.engines.protocol import Engine


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far two correct computations may be apart, in nats: any token, and all of them on the average."""

    any: float
    mean: float


#: Both in float32: 1e-5 is what a small model's engines and trainer are apart, and rounding grows with depth.
EXACT = Tolerance(any=2e-3, mean=5e-4)
#: One of them in bfloat16, which is 0.21 at most and 0.032 on the average away from float32; a fault is nats away.
HALF = Tolerance(any=1.0, mean=0.1)


class CanaryMismatch(Permanent):
    """The engine's log-probabilities are not the trainer's: what it samples would be of another policy."""


async def check_canary(engine: Engine, canary: Canary, *, half: bool) -> float:
    """Score the canary under the live weights; returns the largest difference to the trainer's figures, in nats.

    half: the engine computes in bfloat16. Raises `CanaryMismatch` with the numbers when it is above the tolerance.
    """
    found = await engine.score(canary.token_ids)
    allowed = HALF if half or canary.dtype == "bf16" else EXACT
    apart = [abs(ours - theirs) for ours, theirs in zip(found, canary.logprobs, strict=True)]
    worst = max(range(len(apart)), key=lambda i: math.inf if math.isnan(apart[i]) else apart[i])
    mean = sum(apart) / len(apart)
    # Written so that a NaN, of which no comparison holds, is a mismatch.
    if apart[worst] <= allowed.any and mean <= allowed.mean:
        return apart[worst]
    raise CanaryMismatch(
        f"policy version {engine.version} computes otherwise here than in its trainer: token {worst + 1} of the canary "
        f"(id {canary.token_ids[worst + 1]}) has log-probability {found[worst]:.6g} here and "
        f"{canary.logprobs[worst]:.6g} there, and the {len(apart)} tokens differ by {mean:.2g} on the average; "
        f"expected at most {allowed.any:g} for a token and {allowed.mean:g} on the average; the engine does not "
        "serve what is trained: look at its log for the self-test, and report it with the engine's version"
    )
