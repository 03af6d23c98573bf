"""The choice of an episode's world among those of its seed: the tiers of the published Crafter app."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

import numpy as np
from crafter import objects

from task_apps.crafter.world import RULES, beginning, center

Difficulty = Literal["normal", "easy", "medium", "hard"]
#: Steps from the player, within which a world is looked at.
RADIUS = 10
_TREE = 1 + RULES.materials.index("tree")


@dataclass(frozen=True)
class Bounds:
    """Limits on the neighbourhood: everything within RADIUS steps of the player's start."""

    least_trees: int
    most_hostiles: int


BOUNDS: dict[Difficulty, Bounds] = {"easy": Bounds(4, 0), "medium": Bounds(2, 2), "hard": Bounds(0, 5)}


def episode_of(seed: int, area: tuple[int, int], difficulty: Difficulty) -> int:
    """Return the number, from 1, of the seed's first episode that begins within the tier; 1 for "normal".

    The game itself numbers a seed's episodes, and each has a world of its own. Of the worlds of any area about 5 in 6
    are easy, so the search is short.
    """
    bounds = BOUNDS.get(difficulty)
    if bounds is None:
        return 1
    return next(n for n in itertools.count(1) if _within(bounds, *nearby(seed, area, episode=n)))


def nearby(seed: int, area: tuple[int, int], *, episode: int = 1) -> tuple[int, int]:
    """Count the trees, and the zombies and skeletons, within RADIUS steps of the player's start."""
    begun, (x0, y0) = beginning(seed, area, episode), center(area)
    x, y = np.ogrid[: area[0], : area[1]]
    trees = (begun.materials == _TREE) & (abs(x - x0) + abs(y - y0) <= RADIUS)
    hostiles = [
        kind
        for kind, pos in begun.creatures
        if kind in (objects.Zombie, objects.Skeleton) and abs(pos[0] - x0) + abs(pos[1] - y0) <= RADIUS
    ]
    return int(trees.sum()), len(hostiles)


def _within(bounds: Bounds, trees: int, hostiles: int) -> bool:
    return trees >= bounds.least_trees and hostiles <= bounds.most_hostiles
