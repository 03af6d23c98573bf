"""The engine contract over both engines."""

from tests.unit.inference.contract import *  # noqa: F403
