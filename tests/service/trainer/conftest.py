"""The tiny model of the trainer's unit tests, for tests that run its process."""

from tests.unit.trainer.conftest import model_dir

__all__ = ["model_dir"]
