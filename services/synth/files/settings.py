"""Settings of the files service."""

from __future__ import annotations

from pydantic import Field

from synth.http_guard import GuardSettings
from synth.runtime.settings import ServiceSettings


class FilesSettings(ServiceSettings, GuardSettings):
    """What checking files needs beside the shared settings."""

    files_at_once: int = 2
    """Files that one process reads at the same time."""

    max_line_bytes: int = Field(default=64 << 20, ge=1024)
    """The longest line of a training file: a row is held in memory while it is checked, with the images in it."""

    max_image_bytes: int = 10 << 20
    """The largest image of a training file."""

    max_image_pixels: int = 50_000_000
    """Its largest width times height."""

    image_fetches_at_once: int = 8
    """Images that one process fetches at the same time."""

    image_deadline_s: float = 20.0
    """Seconds within which an image is fetched, its redirects included."""

    image_redirects: int = 3
    """Redirects that are followed on the way to an image; each is looked at as the first address was."""

    image_tries: int = 3
    """How often an image is asked for whose server is away or answers 429 or 5xx."""

    image_retries_per_file: int = 100
    """How many of those repetitions one file may cost."""

    images_deadline_s: float = 1800.0
    """Seconds within which all images of a file are there, or the file is rejected."""
