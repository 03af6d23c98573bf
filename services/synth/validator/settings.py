"""Settings of the validator."""

from __future__ import annotations

from synth.graders.python.settings import PythonGraderSettings
from synth.plugins import PluginSettings
from synth.runtime.settings import ServiceSettings


class ValidatorSettings(ServiceSettings, PythonGraderSettings, PluginSettings):
    """What validating needs beside the shared settings."""

    asks_at_once: int = 4
    """Job files that one process looks at at the same time for clients that wait for it."""
