"""The engine contract over both engines."""

from tests.unit.inference.engines.contract import *  # noqa: F403
