"""Settings of the files service."""

from __future__ import annotations

from pydantic import Field

from synth.images.source import ImageSettings
from synth.outbound.http_guard import GuardSettings
from synth.runtime.settings import ServiceSettings


class FilesSettings(ServiceSettings, GuardSettings, ImageSettings):
    """The settings of the files service, beside the shared ones."""

    files_at_once: int = 2
    """Files that one process reads at the same time, by turns of their organisations; one more for an organisation that
    has none of them."""

    max_line_bytes: int = Field(default=64 << 20, ge=1024)
    """The longest line of a training file: a row is held in memory while it is checked, with the images in it."""

    max_line_values: int = Field(default=400_000, ge=1000)
    """The most JSON values in one line: while as many are decoded, for some 40 ms, the process does nothing else. A
    text is one value. Eight escapes in a text count as a value, and a long number as several."""

    parquet_memory_bytes: int = Field(default=4 << 30, ge=1 << 30)
    """Memory of the process that reads a Parquet file; one that takes more is rejected."""

    parquet_rows_bytes: int = Field(default=64 << 30, ge=1024)
    """The most that a Parquet file's rows may be as JSONL: a small file can hold a billion rows that are equal."""

    image_tries: int = 3
    """How often an image is requested if its server is away or answers 429 or 5xx."""

    image_retries_per_file: int = 100
    """How many of those repetitions one file may cost."""

    images_deadline_s: float = 1800.0
    """Seconds within which all images of a file are there, or the file is rejected."""
