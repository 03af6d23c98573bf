"""Which sandbox the commands of a service run in."""

from __future__ import annotations

from typing import Literal

from synth.settings import Settings


class SandboxSettings(Settings):
    """Settings of every service that runs commands of users."""

    sandbox: Literal["auto", "bubblewrap", "landlock"] = "auto"
    """How commands of users are held: `bubblewrap` (namespaces, by the program `bwrap`), `landlock` (Landlock and
    seccomp, Linux 5.13 or later), or `auto`, which takes the first that this machine can start. A service that must run
    such commands and can start none of them does not start."""
