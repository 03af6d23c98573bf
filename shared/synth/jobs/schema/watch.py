"""`[training.watch]`: the signs of a collapsing policy that the collapse watch looks for, and its action."""

from __future__ import annotations

from synth.jobs.schema.sections import Section
from synth.methods.watch import WatchKeys


class WatchSection(WatchKeys, Section, frozen=True):
    """`[training.watch]`: signs of a collapsing policy. Each has a threshold of its own, and 0 turns it off."""

    enabled: bool = True
    """whether every iteration's figures are checked"""
