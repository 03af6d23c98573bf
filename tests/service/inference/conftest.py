"""The tiny model of the trainer's unit tests: what is trained here is served here."""

from tests.unit.trainer.conftest import model_dir

__all__ = ["model_dir"]
