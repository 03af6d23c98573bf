"""The collapse watch of an RL job: which signs it looks for, and what they lead to."""

from __future__ import annotations

from synth.jobs.resolve.context import Resolving
from synth.jobs.resolved import WatchSettings
from synth.jobs.schema.watch import Watch


def resolve_watch(section: Watch | None, state: Resolving) -> WatchSettings | None:
    """The watch's settings; None where it is turned off."""
    section = section or Watch()
    if section.enabled:
        names = WatchSettings.__struct_fields__
        return WatchSettings(**{name: state.take(f"watch.{name}", section, name) for name in names})
    for name in sorted(section.model_fields_set - {"enabled"}):
        state.warn(state.at(section, name), "has no effect: enabled = false")
    return state.take("watch", section, "enabled") or None
