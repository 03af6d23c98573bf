"""The game of the `crafter` package, the same in every process for a seed, and affordable to begin.

Three things differ from `crafter.Env`, and none of them changes what can happen in the game:

- It keeps the creatures of a chunk in a set, whose order depends on addresses in memory, and picks one by index to
  remove. Here they are kept in the order in which they came.
- Its noise is computed over numpy arrays, element by element: 0.7 s for a world. Here the same code of `opensimplex`
  runs over lists, with the same bits as its result, and the worlds of the last seeds are kept.
- It draws a picture at each step, shown or not, and the picture of a dark step draws from the game's random numbers.
  Here the numbers are drawn and the picture is made only on request: text and images of any size, the same game.
"""

from __future__ import annotations

import collections
import functools
import threading
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import crafter
import numpy as np
from crafter import constants, engine, objects, worldgen
from opensimplex import OpenSimplex, internals

#: The game's own tables: actions, achievements, and the materials for taking, placing and making each thing.
RULES: Any = constants
#: Columns and rows of the picture: 9 x 7 cells of the world above 9 x 2 of the inventory.
VIEW = (9, 9)
_WORLD_ROWS = 7
#: The size in pixels at which the game itself draws, on which the random numbers of a dark step depend.
_SIZE = (64, 64)
_CHUNK = (12, 12)
_DARK = 0.5
#: About 10 kB each.
_WORLDS_KEPT = 1024
_generating = threading.Lock()


class _InOrder(dict[Any, None]):
    """A set of objects in the order in which they were added."""

    def add(self, thing: Any) -> None:
        self[thing] = None

    def remove(self, thing: Any) -> None:
        del self[thing]


@dataclass(frozen=True)
class Beginning:
    """A world as it is generated. materials: ids of (area) cells, uint8; creatures: class and position, in order."""

    materials: np.ndarray
    creatures: tuple[tuple[type, tuple[int, int]], ...]
    random_state: Any


class CrafterWorld(crafter.Env):
    """An episode of Crafter: `reset` begins it, `step(action)` goes on, `picture(size)` shows it. It has no end but
    the player's death."""

    # The parent's constructor reads its textures from files each time, 40 ms.
    def __init__(self, *, seed: int, area: tuple[int, int], episode: int = 1) -> None:
        """episode: which of the seed's, from 1; each has a world of its own."""
        self._area, self._view, self._size = area, np.array(VIEW), np.array(_SIZE)
        self._reward, self._length, self._seed, self._episode = True, None, seed, episode
        self._world = engine.World(area, RULES.materials, _CHUNK)
        self._textures = _textures()
        self._local_view = engine.LocalView(self._world, self._textures, [VIEW[0], _WORLD_ROWS])
        self._item_view = engine.ItemView(self._textures, [VIEW[0], VIEW[1] - _WORLD_ROWS])
        self._sem_view = lambda: None
        self._before_picture: Any = None

    def reset(self) -> Any:
        """Begin the seed's episode, from its first state each time."""
        begun = beginning(self._seed, self._area, self._episode)
        world: Any = self._world
        world.reset()
        world._chunks = collections.defaultdict(_InOrder)
        world._mat_map[:] = begun.materials
        self._step = 0
        self._update_time()
        self._player = objects.Player(world, center(self._area))
        self._last_health = self._player.health
        self._unlocked = set[str]()
        world.add(self._player)
        for kind, pos in begun.creatures:
            world.add(kind(world, pos) if kind is objects.Cow else kind(world, pos, self._player))
        world.random.set_state(begun.random_state)
        return self._obs()

    @property
    def world(self) -> Any:
        """The game's own map: `world[x, y]` is (material, object)."""
        return self._world

    @property
    def player(self) -> Any:
        """The game's own player: `pos`, `facing`, `inventory`, `achievements`, `sleeping`."""
        return self._player

    @property
    def dark(self) -> bool:
        return self._world.daylight < _DARK

    def picture(self, size: int) -> np.ndarray:
        """Return the player's view and inventory: (size, size, 3), uint8. The call does not change the game."""
        after = self._world.random.get_state()
        if self._before_picture is not None:
            self._world.random.set_state(self._before_picture)
        try:
            return self.render((size, size))
        finally:
            self._world.random.set_state(after)

    def _obs(self) -> Any:
        """In place of the parent's picture: draw the random numbers that it would have taken."""
        self._before_picture = None
        if self.dark:
            random, unit = self._world.random, np.array(_SIZE) // VIEW
            self._before_picture = random.get_state()
            random.uniform(size=(VIEW[0] * unit[0], _WORLD_ROWS * unit[1]))


@functools.cache
def _textures() -> engine.Textures:
    return engine.Textures(RULES.root / "assets")


def center(area: tuple[int, int]) -> tuple[int, int]:
    """Return the cell of the player's start."""
    return area[0] // 2, area[1] // 2


def beginning(seed: int, area: tuple[int, int], episode: int) -> Beginning:
    """Generate the world of a seed's n-th episode, one at a time, since rollouts of a group need the same one."""
    with _generating:
        return _generate(seed, area, episode)


@functools.lru_cache(maxsize=_WORLDS_KEPT)
def _generate(seed: int, area: tuple[int, int], episode: int) -> Beginning:
    # As crafter.Env.reset and crafter.worldgen.generate_world have it. Whole numbers have the same hash everywhere.
    world = engine.World(area, RULES.materials, _CHUNK)
    world.reset(seed=hash((seed, episode)) % (2**31 - 1))
    player = objects.Player(world, center(area))
    world.add(player)
    noise: Any = _Noise(world.random.randint(0, 2**31 - 1))
    tunnels = np.zeros(area, bool)
    cells = [(x, y) for x in range(area[0]) for y in range(area[1])]
    for cell in cells:
        worldgen._set_material(world, cell, player, tunnels, noise)
    for cell in cells:
        worldgen._set_object(world, cell, player, tunnels)
    creatures = tuple((type(o), (int(o.pos[0]), int(o.pos[1]))) for o in world.objects if o is not player)
    return Beginning(world._mat_map, creatures, world.random.get_state())


class _Noise:
    """The noise of `OpenSimplex(seed)`, bit by bit, six times as fast: its own code over lists and not arrays."""

    def __init__(self, seed: int) -> None:
        tables = OpenSimplex(seed=seed)
        self._tables = tables._perm.tolist(), tables._perm_grad_index3.tolist()

    def noise3(self, x: float, y: float, z: float) -> float:
        return _noise3()(x, y, z, *self._tables)


@functools.cache
def _noise3() -> Any:
    names = {**vars(internals), "GRADIENTS3": internals.GRADIENTS3.tolist()}
    for name in ("_extrapolate3", "_noise3"):
        function = names[name]
        if isinstance(function, FunctionType):  # with numba installed they are compiled, and fast as they are
            names[name] = FunctionType(function.__code__, names, name)
    return names["_noise3"]
