"""The tiny models of the trainer's unit tests, for tests that run its process."""

from tests.unit.trainer.conftest import loader, model_dir, vision_dir

__all__ = ["loader", "model_dir", "vision_dir"]
