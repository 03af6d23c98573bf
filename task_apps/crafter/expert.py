"""A scripted player that makes training examples: it knows the rules, and the part of the world it has seen."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from task_apps.crafter.env import Game
from task_apps.crafter.view import COLUMNS, ROWS, facing, thing_at
from task_apps.crafter.world import RULES

Cell = tuple[int, int]
_MOVES: dict[str, Cell] = {"move_left": (-1, 0), "move_right": (1, 0), "move_up": (0, -1), "move_down": (0, 1)}
_TAKEN_FROM = {item: material for material, rule in RULES.collect.items() for item in rule["receive"]}
#: Materials that a way may lead through, at the price of taking them first.
_DUG = ("tree", "stone", "coal")
_DIGGING_COSTS = 3
#: Steps to a table that is there; farther away a new one is cheaper.
_WORTH_THE_WAY = 16
_STOCK = {"wood": 9, "stone": 6}
_LOW = 3
_STUCK = 6


class Expert:
    """Plays one game. `turn` gives the actions of one turn to `Game.play`, and looks at the game between them."""

    def __init__(self, game: Game) -> None:
        self._game = game
        self._known: dict[Cell, str] = {}
        self._chance = random.Random(0)
        self._been: Counter[Any] = Counter()
        self._wander = 0

    def turn(self, most: int) -> Iterator[str]:
        """At most `most` actions that serve one goal; a turn ends with its goal, or when something is unlocked."""
        goal, unlocked = "", self._unlocked()
        for _ in range(most):
            self._look()
            wanted, action = self._decide()
            if goal not in ("", wanted) or self._unlocked() != unlocked:
                return
            goal = wanted
            yield action

    @property
    def _player(self) -> Any:
        return self._game.player

    @property
    def _at(self) -> Cell:
        return int(self._player.pos[0]), int(self._player.pos[1])

    def _unlocked(self) -> int:
        return sum(count > 0 for count in self._player.achievements.values())

    def _has(self, achievement: str) -> bool:
        return self._player.achievements[achievement] > 0

    def _look(self) -> None:
        x0, y0 = self._at
        # Creatures move, so earlier sightings are forgotten.
        for cell, thing in self._known.items():
            if thing in ("cow", "zombie", "skeleton", "arrow"):
                self._known[cell] = "grass"
        for x in range(x0 - COLUMNS // 2, x0 + COLUMNS // 2 + 1):
            for y in range(y0 - ROWS // 2, y0 + ROWS // 2 + 1):
                self._known[x, y] = thing_at(self._game.world.world, (x, y))

    def _decide(self) -> tuple[str, str]:
        """Return the goal, and the next action for it."""
        if self._player.sleeping:
            return "sleep", "noop"
        situation = (self._at, tuple(self._player.facing), tuple(self._player.inventory.values()))
        self._been[situation] += 1
        if self._been[situation] > _STUCK:
            self._been.clear()
            self._wander = 5
        if self._wander:
            self._wander -= 1
            return "wander", self._any_move()
        for goal, action in self._goals():
            if action is not None:
                return goal, action
        return "explore", self._explore() or self._any_move()

    def _goals(self) -> Iterator[tuple[str, str | None]]:
        """Yield goals with their next action, the most urgent first; None if nothing can be done for one now."""
        owned = self._player.inventory
        for enemy in ("zombie", "skeleton"):
            if self._near(enemy, 2):
                yield "fight", self._reach((enemy,), "do", within=4)
        if owned["drink"] <= _LOW:
            yield "drink", self._reach(("water",), "do") or self._explore()
        if owned["food"] <= _LOW:
            yield "eat", self._reach(("ripe plant", "cow"), "do") or self._explore()
        calm = not any(self._near(enemy, 8) for enemy in ("zombie", "skeleton"))
        tired = owned["energy"] < _LOW or (
            owned["energy"] < 9 and not self._has("wake_up") and not self._game.world.dark
        )
        if tired and calm:
            yield "sleep", "sleep"
        yield from self._on_the_way(owned)
        if not self._has("place_plant"):
            yield "plant", self._plant()
        for tool in ("wood_pickaxe", "wood_sword"):
            yield tool, self._make(tool)
        if not self._has("place_stone"):
            yield "place stone", self._put("stone", ("grass", "sand", "path"))
        for tool in ("stone_pickaxe", "stone_sword"):
            yield tool, self._make(tool)
        if not self._has("place_furnace"):
            yield "furnace", self._station(["table", "furnace"])
        for item in ("coal", "iron"):
            if not self._has(f"collect_{item}"):
                yield item, self._take(item)
        yield "iron_pickaxe", self._make("iron_pickaxe")
        if not self._has("collect_diamond"):
            yield "diamond", self._reach(("diamond",), "do")
        yield "iron_sword", self._make("iron_sword")
        if not self._has("collect_diamond"):
            yield "diamond", self._take("diamond")
        yield from self._when_all_is_made()

    def _on_the_way(self, held: dict[str, int]) -> Iterator[tuple[str, str | None]]:
        """Yield goals that are worth a few steps when they are near."""
        if not self._has("collect_drink") or held["drink"] < 6:
            yield "drink", self._reach(("water",), "do", within=6)
        if not self._has("eat_cow") or held["food"] < 5:
            yield "eat", self._reach(("cow", "ripe plant"), "do", within=6)
        for item, most in _STOCK.items():
            if held[item] < most and self._able(item):
                yield f"stock {item}", self._reach((_TAKEN_FROM[item],), "do", within=3)

    def _when_all_is_made(self) -> Iterator[tuple[str, str | None]]:
        for enemy in ("zombie", "skeleton"):
            if not self._has(f"defeat_{enemy}"):
                yield f"hunt {enemy}", self._reach((enemy,), "do")
        for need, things in (("collect_drink", ("water",)), ("eat_cow", ("cow",))):
            if not self._has(need):
                yield need, self._reach(things, "do")
        if not self._has("eat_plant"):
            yield "tend", self._reach(("sapling", "ripe plant"), "do")
            yield "plant", self._plant()

    def _plant(self) -> str | None:
        return self._put("plant", ("grass",)) if self._player.inventory["sapling"] else self._reach(("grass",), "do")

    def _make(self, tool: str) -> str | None:
        """Towards a tool that is not made yet."""
        if self._has(f"make_{tool}"):
            return None
        rule = RULES.make[tool]
        missing = self._missing(rule["uses"])
        return missing or self._station(rule["nearby"]) or f"make_{tool}"

    def _missing(self, uses: dict[str, int]) -> str | None:
        for item, count in uses.items():
            if self._player.inventory[item] < count:
                return self._take(item) or self._explore()
        return None

    def _able(self, item: str) -> bool:
        return all(self._player.inventory[tool] for tool in RULES.collect[_TAKEN_FROM[item]]["require"])

    def _take(self, item: str) -> str | None:
        """Return an action towards one more of an item; None if no place of one is known."""
        for tool in RULES.collect[_TAKEN_FROM[item]]["require"]:
            if not self._player.inventory[tool]:
                return self._make(tool)
        return self._reach((_TAKEN_FROM[item],), "do")

    def _station(self, nearby: list[str]) -> str | None:
        """Towards a place with a table, or with a furnace, too; None when we are at one."""
        absent = [thing for thing in nearby if not self._beside(self._at, thing)]
        if not absent:
            return None
        there = self._search(lambda c: all(self._beside(c, thing) for thing in nearby), within=_WORTH_THE_WAY)
        if there is None and len(absent) < len(nearby):
            return self._put(absent[0], ("grass", "sand", "path"))
        if there is None and len(nearby) > 1:
            return self._station(nearby[:1])
        return there or self._put(nearby[0], ("grass", "sand", "path"))

    def _put(self, thing: str, ground: tuple[str, ...]) -> str | None:
        return self._missing(RULES.place[thing]["uses"]) or self._reach(ground, f"place_{thing}")

    def _beside(self, cell: Cell, thing: str) -> bool:
        """Return whether it is among the nine cells around, the game's own rule for tools."""
        x, y = cell
        return any(self._known.get((x + i, y + j)) == thing for i in (-1, 0, 1) for j in (-1, 0, 1))

    def _near(self, thing: str, distance: int) -> bool:
        x, y = self._at
        return any(
            self._known.get((x + i, y + j)) == thing
            for i in range(-distance, distance + 1)
            for j in range(abs(i) - distance, distance - abs(i) + 1)
        )

    def _reach(self, things: tuple[str, ...], act: str, *, within: int | None = None) -> str | None:
        """Act on one of these things once it is faced; before that the next step to the nearest of those known."""
        if self._known.get(facing(self._player)) in things:
            return act
        targets = {cell for cell, thing in self._known.items() if thing in things}
        if not targets:
            return None
        return self._search(lambda c: any(n in targets for n in _around(c)), within=within, then=targets)

    def _explore(self) -> str | None:
        """Return the next step to the nearest cell that is not known."""
        return self._search(lambda c: any(n not in self._known for n in _around(c)))

    def _search(
        self, arrived: Callable[[Cell], bool], *, within: int | None = None, then: set[Cell] | None = None
    ) -> str | None:
        """Return the next action on the cheapest known way to a goal cell; at the cell, a turn to one of `then`."""
        start = self._at
        cost, came = {start: 0}, dict[Cell, Cell]()
        heap: list[tuple[int, Cell]] = [(0, start)]
        while heap:
            spent, cell = heapq.heappop(heap)
            if spent > cost[cell]:
                continue
            if within is not None and spent > within:
                return None
            if arrived(cell) and (then is not None or cell != start):
                return self._towards(_first(came, start, cell) or next(n for n in _around(cell) if n in (then or ())))
            for near in _around(cell):
                price = self._price(near)
                if price is not None and spent + price < cost.get(near, 1 << 30):
                    cost[near], came[near] = spent + price, cell
                    heapq.heappush(heap, (spent + price, near))
        return None

    def _price(self, cell: Cell) -> int | None:
        """Return the steps to a neighbouring cell; None if it cannot be entered."""
        thing = self._known.get(cell)
        if thing in RULES.walkable:
            return 1
        if thing in _DUG and all(self._player.inventory[tool] for tool in RULES.collect[thing]["require"]):
            return _DIGGING_COSTS
        return None

    def _towards(self, cell: Cell) -> str:
        """Return a step to a neighbouring cell, or a turn towards it; an obstacle in the way is removed."""
        if self._known.get(cell) in _DUG and facing(self._player) == cell:
            return "do"
        x, y = self._at
        return next(move for move, (dx, dy) in _MOVES.items() if (x + dx, y + dy) == cell)

    def _any_move(self) -> str:
        x, y = self._at
        safe = [m for m, (dx, dy) in _MOVES.items() if self._known.get((x + dx, y + dy)) != "lava"]
        return self._chance.choice(safe or ["noop"])


def _around(cell: Cell) -> list[Cell]:
    return [(cell[0] + dx, cell[1] + dy) for dx, dy in _MOVES.values()]


def _first(came: dict[Cell, Cell], start: Cell, cell: Cell) -> Cell | None:
    """Return the first cell after the start on the way; None where we are there."""
    if cell == start:
        return None
    while came[cell] != start:
        cell = came[cell]
    return cell
