"""Pictures of one square, by seed: four colours, anywhere in a quadrant; and the right answer for each."""

from __future__ import annotations

import base64
import io
import random

from PIL import Image, ImageDraw

HELD_OUT_FROM = 1_000_000
QUESTION = "What colour is the square?"
COLOURS = {"red": (220, 40, 40), "green": (40, 180, 60), "blue": (50, 80, 220), "yellow": (230, 210, 40)}
SIDE = 64
_BACKGROUND = (128, 128, 128)
_LARGEST_GAP = 4


def colour_of(seed: int) -> str:
    """Return the colour of a seed's square."""
    return random.Random(seed).choice(list(COLOURS))


def picture(seed: int, *, blank: bool = False) -> str:
    """Return a seed's picture as a data URL of a PNG. blank: without its square, the same for every seed."""
    image = Image.new("RGB", (SIDE, SIDE), _BACKGROUND)
    if not blank:
        chance = random.Random(seed)
        colour = COLOURS[chance.choice(list(COLOURS))]
        left, top = (chance.choice((0, SIDE // 2)) + chance.randint(0, _LARGEST_GAP) for _ in range(2))
        width = SIDE // 2 - 2 * _LARGEST_GAP + chance.randint(0, _LARGEST_GAP)
        # The hue varies a little, so that no two pictures need be the same.
        shade = tuple(max(0, min(255, c + chance.randint(-15, 15))) for c in colour)
        ImageDraw.Draw(image).rectangle((left, top, left + width, top + width), fill=shade)
    out = io.BytesIO()
    image.save(out, "PNG")
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()


def messages(seed: int, *, blank: bool = False) -> list[dict[str, object]]:
    """Return the user's message: the picture, then the question."""
    shown = {"type": "image_url", "image_url": {"url": picture(seed, blank=blank)}}
    return [{"role": "user", "content": [shown, {"type": "text", "text": QUESTION}]}]


def is_right(text: str, seed: int) -> bool:
    """Return whether the text names the square's colour, and nothing else."""
    return text.strip().rstrip(".").lower() == f"{colour_of(seed)} square"
