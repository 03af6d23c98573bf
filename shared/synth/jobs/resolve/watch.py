"""The collapse watch of an RL job: which signs it looks for, and what they lead to."""

from __future__ import annotations

from synth.jobs.resolve.context import ResolveContext
from synth.jobs.resolved import WatchSettings
from synth.jobs.schema.watch import WatchSection


def resolve_watch(section: WatchSection | None, context: ResolveContext) -> WatchSettings | None:
    """The watch's settings; None where it is turned off."""
    section = section or WatchSection()
    if section.enabled:
        names = WatchSettings.__struct_fields__
        return WatchSettings(**{name: context.take(f"watch.{name}", section, name) for name in names})
    for name in sorted(section.model_fields_set - {"enabled"}):
        context.warn(context.at(section, name), "has no effect: enabled = false")
    return context.take("watch", section, "enabled") or None
