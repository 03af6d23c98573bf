"""Which sandbox code and bytes of users are held by."""

from __future__ import annotations

from typing import Literal

from synth.settings import Settings


class SandboxSettings(Settings):
    """Settings of every service that runs code of users, or decodes their images."""

    sandbox: Literal["auto", "bubblewrap", "landlock"] = "auto"
    """The sandbox for code of users and decoders of their bytes: `bubblewrap` (namespaces, by the program `bwrap`),
    `landlock` (Landlock and seccomp, Linux 5.13 or later), or `auto`, the first of them that this machine can start. If
    none starts, a service that runs code of users does not start, and decoders run in processes without keys, but
    without a sandbox."""
