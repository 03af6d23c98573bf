"""The longest time for which the event loop of each service stood still, from its `/metrics`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

#: Seconds that a gap lasted at most → how many gaps did. The last is infinite.
_Counts = dict[float, float]
_WALL, _OWN = "synth_loop_gap_seconds", "synth_loop_gap_own_seconds"


@dataclass(frozen=True)
class Gaps:
    """All gaps of one loop since its start. own: each at most the CPU time of the process in it."""

    wall: _Counts
    own: _Counts

    def since(self, before: Gaps) -> tuple[float, float]:
        """The longest gap since an earlier reading: in wall time, and its own; each rounded up to a bucket."""
        return _longest(before.wall, self.wall), _longest(before.own, self.own)


async def read_gaps(ports: Mapping[str, int]) -> dict[str, Gaps]:
    """The gaps of each service. ports: of their HTTP sides."""
    gaps: dict[str, Gaps] = {}
    async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
        for name, port in ports.items():
            text = (await http.get(f"http://127.0.0.1:{port}/metrics")).raise_for_status().text
            counts: dict[str, _Counts] = {_WALL: {}, _OWN: {}}
            for family in text_string_to_metric_families(text):
                for sample in family.samples if family.name in counts else ():
                    if sample.name.endswith("_bucket"):
                        counts[family.name][float(sample.labels["le"])] = sample.value
            gaps[name] = Gaps(counts[_WALL], counts[_OWN])
    return gaps


def longest(before: Mapping[str, Gaps], after: Mapping[str, Gaps]) -> dict[str, tuple[float, float]]:
    """The longest gaps of each service between two readings; of one that was started again, since its start."""
    none = Gaps({}, {})
    return {name: gaps.since(before.get(name, none)) for name, gaps in after.items()}


def _longest(before: _Counts, after: _Counts) -> float:
    total = after[max(after)] - before.get(max(after), 0)
    return min(most for most, count in after.items() if count - before.get(most, 0) >= total)
