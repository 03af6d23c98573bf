"""An organisation that submits jobs for as long as it may: the log takes its share of them, and no more."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx

from synth.access import Scope
from synth.bus.connection import Connection
from synth.bus.kv.secrets import SecretStore
from synth.bus.recorded import Recorded
from synth.service_secrets import ServiceSecrets
from tests.soak.history import Violation

#: Of the log, for this organisation.
SHARE = 200_000
#: Two gateways count for themselves what is under way.
_MOST = 2 * SHARE
_ASK_S = 5.0
#: No job of it is valid.
_JOB = {"config": "#" * 4_000, "config_name": "greedy.toml"}


@dataclass
class Greedy:
    """The organisation. refused: how often a gateway has refused it."""

    org: str
    key: str
    refused: int = 0
    _turns: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def setting(self) -> str:
        """The value of SYNTH_ORG_LIMITS."""
        return json.dumps({self.org: {"log_bytes": SHARE}})

    async def submit_for_ever(self, ports: Sequence[int]) -> None:
        """Submit one job after the other to the gateways by turns, whatever they answer, until cancelled."""
        headers = {"Authorization": f"Bearer {self.key}"}
        async with httpx.AsyncClient(timeout=_ASK_S, trust_env=False, headers=headers) as http:
            for turn in self._turns:
                try:
                    reply = await http.post(f"http://127.0.0.1:{ports[turn % len(ports)]}/api/jobs", json=_JOB)
                except httpx.HTTPError:
                    continue
                self.refused += reply.status_code == httpx.codes.TOO_MANY_REQUESTS

    def check(self, facts: Sequence[Recorded]) -> list[Violation]:
        """Return whether its events take more of the log than it may have."""
        size = sum(fact.size for fact in facts if fact.org == self.org)
        if size <= _MOST:
            return []
        what = f"{size:,} bytes, and it may have {SHARE:,}; it was refused {self.refused} times"
        return [Violation("an organisation has its share of the log", self.org, what)]


async def make_greedy(bus: Connection, *, cluster_secret: str, bootstrap_key: str) -> Greedy:
    """Make the organisation before a gateway starts, and that of the cluster's first key."""
    secrets = SecretStore(bus, ServiceSecrets.derive("gateway", cluster_secret))
    await secrets.ensure_api_key(bootstrap_key)
    organisation = await secrets.add_organisation("greedy")
    key, _ = await secrets.add_api_key(organisation.id, name="greedy", scopes=tuple(Scope), by="storm")
    return Greedy(organisation.id, key)
