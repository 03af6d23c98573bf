"""Checks through the gateway's API, as an operator: organisations, their limits, and keys without an end."""

from __future__ import annotations

from synth.access import Scope
from synth.api.schemas import Key
from synth.cli.hardening.deployment import SeenDeployment
from synth.cli.hardening.findings import Finding
from synth.client import Client
from synth.client.connections.config import Config
from synth.client.connections.known_origins import require_confirmed
from synth.console.errors import CliError

_MOST_NAMED = 3


def check_account(deployment: SeenDeployment, config: Config) -> list[Finding]:
    """Check keys and limits, with the key that `synthctl` has. It needs the scope `operator` to see organisations."""
    where = config.backend.text
    try:
        require_confirmed(config.require_api_key(), config.backend)
        with Client(config, retry_budget=1.0) as client:
            account = client.account()
            keys = client.keys.list() if Scope.KEYS in account.scopes else None
            organisations = len(client.operator.organisations()) if Scope.OPERATOR in account.scopes else None
    except CliError as error:
        problem = error.problems[0]
        return [Finding(check, "not checked", problem.what, where, problem.fix) for check in ("API keys", "limits")]
    return [*_keys(keys, where), _limits(deployment, organisations, where)]


def _keys(keys: list[Key] | None, where: str) -> list[Finding]:
    if keys is None:
        fix = "use a key with the scope `keys`"
        return [Finding("API keys", "not checked", "this key may not list the keys of its organisation", where, fix)]
    endless = [key for key in keys if key.state == "live" and key.expires_at is None]
    operators = [key for key in endless if Scope.OPERATOR in key.scopes]
    others = [key for key in endless if key not in operators]
    fix = "replace each by one with an end: synthctl keys create --expires-in 90d, then synthctl keys revoke"
    findings = [
        Finding(check, "warning", f"without an end: {_named(observed)}", where, fix)
        for check, observed in (("operator keys", operators), ("API keys", others))
        if observed
    ]
    return findings or [Finding("API keys", "ok", f"each of {len(keys)} keys of this organisation has an end", where)]


def _named(keys: list[Key]) -> str:
    names = ", ".join(f"{key.id} ({key.name})" for key in keys[:_MOST_NAMED])
    return names if len(keys) <= _MOST_NAMED else f"{names} and {len(keys) - _MOST_NAMED} more"


def _limits(deployment: SeenDeployment, organisations: int | None, where: str) -> Finding:
    gateways = [s for s in deployment.services if s.name.partition(" ")[0] == "gateway"]
    if not gateways:
        why = "the settings of no gateway are seen from here"
        return Finding("limits", "not checked", why, where, "run it on the gateway's machine, or with --compose")
    if all(any(name.startswith("SYNTH_ORG_") and value for name, value in g.environment.items()) for g in gateways):
        return Finding("limits", "ok", "set by SYNTH_ORG_…", gateways[0].place)
    place = gateways[0].place
    if organisations == 1:
        return Finding("limits", "ok", "the defaults; there is one organisation", place)
    many = "this key may not count the organisations" if organisations is None else f"{organisations} organisations"
    fix = 'set SYNTH_ORG_… of the gateway (docs/operations.md, "Limits")'
    return Finding("limits", "warning", f"the defaults, and {many}", place, fix)
