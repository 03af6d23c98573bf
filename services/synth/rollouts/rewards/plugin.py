"""An advantage that the operator has installed: it maps the rewards of a group to one number for each rollout."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, cast

from synth.errors import Permanent
from synth.plugins import load_plugin

#: Advantages are float32, and the losses multiply them.
_LARGEST = 1e30
_EXAMPLES = ([1.0, 0.0, 0.5, 0.0], [0.0, 1.0])


class AdvantageFailed(Permanent):
    """An error of a plugin that gives no advantages. Its job ends with the reason."""


@dataclass(frozen=True)
class PluginAdvantage:
    """The advantage of a plugin. name: as in the job. function: pure, so that equal rewards give equal results."""

    name: str
    function: Callable[[list[float]], Any]

    def __call__(self, rewards: list[float]) -> list[float]:
        """Return one finite number for each reward. Raises `AdvantageFailed` if the function fails to return them."""
        try:
            returned = self.function(list(rewards))
            values = [float(value) for value in cast(Any, returned)]
        except Exception as error:
            traceback.print_exc()
            raise self._failed(f"for {_shown(rewards)} it raises {type(error).__name__}: {error}") from error
        if len(values) != len(rewards):
            raise self._failed(f"it gives {len(values)} numbers for {len(rewards)} rewards")
        if not all(math.isfinite(value) and abs(value) <= _LARGEST for value in values):
            raise self._failed(f"for {_shown(rewards)} it gives {_shown(values)}")
        return values

    def _failed(self, what: str) -> AdvantageFailed:
        expected = f"a finite number for each rollout, at most {_LARGEST:g}"
        return AdvantageFailed(f"the advantage {self.name!r} is at fault: {what}; expected {expected}")


def load_advantage(name: str, allowed: Collection[str]) -> PluginAdvantage:
    """Load a plugin's advantage, and try it on small groups. Raises `Permanent` if it may not or cannot be used."""
    advantage = PluginAdvantage(name, load_plugin(name, allowed))
    for rewards in _EXAMPLES:
        advantage(rewards)
    return advantage


def _shown(values: list[float]) -> str:
    return f"[{', '.join(f'{value:g}' for value in values[:8])}{', …' if len(values) > 8 else ''}]"
