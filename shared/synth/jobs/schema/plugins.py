"""Values that name a function: a built-in loss, or a function that the operator has installed."""

from __future__ import annotations

import difflib
from typing import Annotated

from pydantic import AfterValidator

from synth.methods.losses import LOSSES, list_losses
from synth.plugins import FORM, is_plugin


def _plugin(name: str) -> str:
    if not is_plugin(name):
        raise ValueError(FORM)
    return name


def _loss(name: str) -> str:
    if name in LOSSES or is_plugin(name):
        return name
    near = difflib.get_close_matches(name.lower(), LOSSES, n=1)
    raise ValueError(f"{list_losses()}, or a function as {FORM}" + (f"; did you mean {near[0]!r}?" if near else ""))


PluginName = Annotated[str, AfterValidator(_plugin)]
LossName = Annotated[str, AfterValidator(_loss)]
