"""Reports environment variables that look like a setting and are none: a misspelt setting has no effect, silently."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from synth.runtime.environment.setting_names import NAMES

#: Variables beside the settings of services: of the client, the containers, the examples, and of synth-ai's programs.
_OTHERS = frozenset(
    {
        *("SYNTH_API_KEY", "SYNTH_DEBUG", "SYNTH_TASK_APP", "SYNTH_TASK_APP_SEARCH_PATH", "SYNTH_BUS_KEY"),
        *("SYNTH_INFERENCE_PYTHON", "SYNTH_INFERENCE_PINS", "SYNTH_NATS_ISSUER"),
        *("SYNTH_MODEL_MEMORY", "SYNTH_SERVICE_MEMORY", "SYNTH_PUBLISHED_PORT"),
        *("SYNTH_TRACES_DB", "SYNTH_TRACES_DIR"),
    }
)
#: Variables of one user of the bus or one service: `docker-compose.yml` passes each its own.
_OF_ONE_SERVICE = re.compile(r"SYNTH_(NATS_PASSWORD|NATS_SEED|SECRETS)_[A-Z]+")
#: Kubernetes sets these for a service whose name begins with `synth-`.
_SERVICE_LINK = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)")


def unknown_settings(environment: Iterable[str]) -> list[str]:
    """Return a sentence for each variable that begins with `SYNTH_` and is no setting, with the nearest one."""
    known = NAMES | _OTHERS
    names = sorted(name for name in environment if name.upper().startswith("SYNTH_") and name.upper() not in known)
    return [_sentence(name, known) for name in names if not _is_of_another(name.upper())]


def _is_of_another(name: str) -> bool:
    return any(pattern.fullmatch(name) for pattern in (_OF_ONE_SERVICE, _SERVICE_LINK))


def _sentence(name: str, known: Iterable[str]) -> str:
    # Without the common prefix, which makes all names alike.
    near = difflib.get_close_matches(
        name.upper().removeprefix("SYNTH_"), [n.removeprefix("SYNTH_") for n in known], n=1
    )
    fix = f"did you mean SYNTH_{near[0]}?" if near else "docs/settings.md lists the settings"
    return f"{name} is no setting and has no effect; {fix}"
