"""The processes in which images of the tests are decoded: one pool for all tests of a process."""

from __future__ import annotations

from synth.images.decoder import ImageDecoder
from synth.images.source import ImageSettings

DECODER = ImageDecoder.start(ImageSettings())
