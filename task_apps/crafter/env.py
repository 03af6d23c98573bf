"""An episode of Crafter by turns: several actions each, and an observation in words, in pictures, or both."""

from __future__ import annotations

import base64
import hashlib
import io
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from task_apps.crafter.difficulty import Difficulty, episode_of
from task_apps.crafter.view import describe
from task_apps.crafter.world import RULES, CrafterWorld

ACTIONS: tuple[str, ...] = tuple(RULES.actions)
ACHIEVEMENTS: tuple[str, ...] = tuple(RULES.achievements)
_NUMBER = {name: number for number, name in enumerate(ACTIONS)}


@dataclass(frozen=True)
class Picture:
    """A frame as PNG. size: pixels of each of its sides."""

    png: bytes = field(repr=False)
    size: int

    @property
    def data_url(self) -> str:
        return f"data:image/png;base64,{base64.b64encode(self.png).decode()}"

    def digest(self) -> dict[str, Any]:
        """Return a summary to store in place of the picture's bytes."""
        return {"sha256": hashlib.sha256(self.png).hexdigest(), "size": self.size, "bytes": len(self.png)}


@dataclass(frozen=True)
class Observation:
    """The player's view. pictures: the latest last; none unless they are shown."""

    text: str
    pictures: list[Picture] = field(default_factory=list[Picture])

    def summary(self) -> dict[str, Any]:
        """Return the observation without the pictures' bytes."""
        return {"text": self.text, "images": [picture.digest() for picture in self.pictures]}


@dataclass(frozen=True)
class Turn:
    """The results of a turn's actions.

    played: the actions that the game took; fewer than requested if the episode ended on the way. reward: the game's
    own, summed: 1 for a step that unlocks something, a tenth of each point of health that is won or lost. events: the
    achievements of the turn, each as often as it occurred; unlocked: the episode's first ones among them.
    dead, truncated: why the episode is over, if it is.
    """

    played: list[str]
    reward: float
    events: list[str]
    unlocked: list[str]
    observation: Observation
    dead: bool
    truncated: bool

    @property
    def done(self) -> bool:
        return self.dead or self.truncated


class Game:
    """One episode. Equal seed, area, difficulty and actions give an equal episode, with pictures or without."""

    def __init__(
        self,
        seed: int,
        *,
        area: tuple[int, int] = (64, 64),
        difficulty: Difficulty = "normal",
        max_steps: int = 10_000,
        image_size: int = 0,
        images: int = 1,
    ) -> None:
        """area: cells of the world, width and height. difficulty: of the tier the seed's first world is, else its
        first. max_steps: after which the episode is truncated.

        image_size: pixels of each side of a picture; 0 is no pictures. images: of how many of a turn's actions there is
        a picture, the last ones.
        """
        self.world = CrafterWorld(seed=seed, area=area, episode=episode_of(seed, area, difficulty))
        self.world.reset()
        self.max_steps = max_steps
        self.steps = 0
        self.unlocked: list[str] = []
        self._image_size, self._images = image_size, images

    @property
    def player(self) -> Any:
        return self.world.player

    def look(self) -> Observation:
        """Return the observation as it is now."""
        return self._observe([self._picture()] if self._image_size else [])

    def play(self, actions: Iterable[str]) -> Turn:
        """Play actions until they end or the episode does. A lazy iterable may look at the game after each of them.

        Raises KeyError for a name that is none of ACTIONS, before the game takes it.
        """
        inventory, achieved = dict(self.player.inventory), dict(self.player.achievements)
        played: list[str] = []
        reward, dead = 0.0, False
        pictures: deque[Picture] = deque(maxlen=self._images)
        for action in actions:
            number = _NUMBER[action]
            _, earned, dead, _ = self.world.step(number)
            self.steps += 1
            played.append(action)
            reward += float(earned)
            if self._image_size and self._images > 1:
                pictures.append(self._picture())
            if dead or self.steps >= self.max_steps:
                break
        if self._image_size and not pictures:
            pictures.append(self._picture())
        counts = self.player.achievements
        events = [name for name in ACHIEVEMENTS for _ in range(counts[name] - achieved[name])]
        unlocked = [name for name in dict.fromkeys(events) if name not in self.unlocked]
        self.unlocked += unlocked
        return Turn(
            played=played,
            reward=reward,
            events=events,
            unlocked=unlocked,
            observation=self._observe(list(pictures), _changes(inventory, self.player.inventory), unlocked),
            dead=bool(dead),
            truncated=not dead and self.steps >= self.max_steps,
        )

    def _observe(self, pictures: list[Picture], changes: str = "", unlocked: list[str] | None = None) -> Observation:
        lines = [
            f"Step {self.steps} of {self.max_steps}. Achievements: {len(self.unlocked)} of {len(ACHIEVEMENTS)}.",
            *([f"New: {', '.join(unlocked)}."] if unlocked else []),
            *([f"Since your last turn: {changes}."] if changes else []),
            describe(self.world.world, self.player, dark=self.world.dark),
        ]
        return Observation("\n".join(lines), pictures)

    def _picture(self) -> Picture:
        png = io.BytesIO()
        Image.fromarray(self.world.picture(self._image_size)).save(png, "PNG")
        return Picture(png.getvalue(), self._image_size)


def _changes(before: dict[str, int], after: dict[str, int]) -> str:
    gained = Counter(after)
    gained.subtract(before)
    return ", ".join(f"{count:+d} {name}" for name, count in gained.items() if count)
