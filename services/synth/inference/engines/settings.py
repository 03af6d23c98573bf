"""How one engine runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How one engine runs.

    threads: torch threads (more than one only on an idle machine: contended spin-waits make it slower).
    device: "cpu", "cuda:0" …; None: the first GPU if there is one. kv_budget_bytes: None: 1 GiB on a CPU, 60 % of the
    free memory of a GPU. max_rows: requests in one step; its logits cost 12 bytes x vocabulary a row.
    seed: of the draws of requests without a seed of their own; None: from the operating system.
    """

    threads: int = 1
    device: str | None = None
    kv_budget_bytes: int | None = None
    max_rows: int = 256
    seed: int | None = None
