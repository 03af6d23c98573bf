"""The proof that an engine computes with the weights that it was given: it scores the trainer's canary again.

Digests prove only that the right tensors arrived. An LM head packed from the old weights, a cache that outlived its
weights, an adapter on the wrong rows: digests find none of these faults, and the canary finds all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from synth.errors import Permanent
from synth.events import Canary
from synth.inference.engines.protocol import Engine


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The largest difference between two correct computations, in nats: for any token, and on average."""

    max_error: float
    mean_error: float


#: If both compute in float32, a small model's engine and trainer differ by 1e-5, and rounding errors grow with depth.
FLOAT32_TOLERANCE = Tolerance(max_error=2e-3, mean_error=5e-4)
#: If one computes in bfloat16, it differs from float32 by at most 0.21 and 0.032 on average; a fault by several nats.
BFLOAT16_TOLERANCE = Tolerance(max_error=1.0, mean_error=0.1)


class CanaryMismatch(Permanent):
    """An error: the engine's log-probabilities are not the trainer's, so its samples would be of another policy."""


async def check_canary(engine: Engine, canary: Canary, *, half_precision: bool) -> float:
    """Score the canary under the live weights.

    Returns the largest difference from the trainer's log-probabilities, in nats.

    half_precision: the engine computes in bfloat16.
    Raises `CanaryMismatch` with the numbers when the difference is above the tolerance.
    """
    scored = await engine.score(canary.token_ids)
    allowed = BFLOAT16_TOLERANCE if half_precision or canary.dtype == "bf16" else FLOAT32_TOLERANCE
    errors = [abs(ours - theirs) for ours, theirs in zip(scored, canary.logprobs, strict=True)]
    worst = max(range(len(errors)), key=lambda i: math.inf if math.isnan(errors[i]) else errors[i])
    mean = sum(errors) / len(errors)
    # Every comparison with NaN is false, so a NaN is a mismatch.
    if errors[worst] <= allowed.max_error and mean <= allowed.mean_error:
        return errors[worst]
    raise CanaryMismatch(
        f"policy version {engine.version} computes otherwise here than in its trainer: token {worst + 1} of the canary "
        f"(id {canary.token_ids[worst + 1]}) has log-probability {scored[worst]:.6g} here and "
        f"{canary.logprobs[worst]:.6g} there, and the {len(errors)} tokens differ by {mean:.2g} on the average; "
        f"expected at most {allowed.max_error:g} for a token and {allowed.mean_error:g} on the average; the engine "
        "does not serve what is trained: look at its log for the self-test, and report it with the engine's version"
    )
