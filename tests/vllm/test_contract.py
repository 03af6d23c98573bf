"""The engine contract over both engines."""

from tests.unit.inference.engines.contract import *  # noqa: F403
from tests.unit.inference.engines.sleep_contract import *  # noqa: F403
