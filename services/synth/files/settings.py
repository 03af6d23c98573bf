"""Settings of the files service."""

from __future__ import annotations

from synth.settings import ServiceSettings


class FilesSettings(ServiceSettings):
    """What checking files needs beside the shared settings."""

    files_at_once: int = 2
    """Files that one process reads at the same time."""
