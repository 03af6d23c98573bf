"""The processes in which images of the tests are decoded: one pool for all tests of a process."""

from __future__ import annotations

from synth.images.source import ImageSettings, image_decoders

DECODERS = image_decoders(ImageSettings())
