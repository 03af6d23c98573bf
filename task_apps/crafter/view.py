"""The player's view in words: the 9 x 7 cells around it, its inventory, and the changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from crafter import objects

from task_apps.crafter.world import RULES

COLUMNS, ROWS = 9, 7
YOU = "@"
_OUTSIDE = "%"
_VITALS = ("health", "food", "drink", "energy")
#: Of what there is in the world, its sign on the map.
SIGNS = {
    "grass": ".",
    "sand": ":",
    "path": "_",
    "stone": "#",
    "tree": "T",
    "water": "~",
    "lava": "!",
    "coal": "c",
    "iron": "i",
    "diamond": "d",
    "table": "t",
    "furnace": "f",
    "cow": "C",
    "zombie": "Z",
    "skeleton": "S",
    "arrow": "A",
    "sapling": "p",
    "ripe plant": "P",
    "edge of the world": _OUTSIDE,
}
#: Materials that the player walks on are too common to be described.
_GROUND = {*RULES.walkable, "edge of the world"}
_DIRECTIONS = {(-1, 0): "left", (1, 0): "right", (0, -1): "up", (0, 1): "down"}
_CREATURES = {objects.Cow: "cow", objects.Zombie: "zombie", objects.Skeleton: "skeleton", objects.Arrow: "arrow"}


def thing_at(world: Any, pos: tuple[int, int]) -> str:
    """Return the thing at a cell, a key of SIGNS: the creature there, else the material."""
    material, thing = world[pos]
    if isinstance(thing, objects.Plant):
        return "ripe plant" if thing.ripe else "sapling"
    if thing is not None and type(thing) in _CREATURES:
        return _CREATURES[type(thing)]
    return material or "edge of the world"


def facing(player: Any) -> tuple[int, int]:
    """Return the cell that the player faces, on which `do` and `place_…` act."""
    return int(player.pos[0] + player.facing[0]), int(player.pos[1] + player.facing[1])


def describe(world: Any, player: Any, *, dark: bool) -> str:
    """Return the observation in lines: vitals and inventory, the faced cell, the map, and the nearest of each kind."""
    inventory = player.inventory
    vitals = ", ".join(f"{name} {inventory[name]}" for name in _VITALS)
    carried = ", ".join(f"{count} {name}" for name, count in inventory.items() if name not in _VITALS and count)
    seen = dict(_seen(world, player))
    grid = [
        " ".join(YOU if (x, y) == (0, 0) else SIGNS[seen[x, y]] for x in range(-(COLUMNS // 2), COLUMNS // 2 + 1))
        for y in range(-(ROWS // 2), ROWS // 2 + 1)
    ]
    near = "; ".join(f"{thing} {_way(offset)}" for thing, offset in _nearest(seen).items())
    lines = [
        f"{vitals[0].upper()}{vitals[1:]}. You carry {carried or 'nothing'}.",
        f"You face {_DIRECTIONS[tuple(player.facing)]}: {thing_at(world, facing(player))}.",
        *grid,
        f"Nearest: {near}." if near else "Nothing but open ground is near.",
    ]
    if dark:
        lines.append("It is dark.")
    if player.sleeping:
        lines.append("You are asleep.")
    return "\n".join(lines)


def _seen(world: Any, player: Any) -> Iterator[tuple[tuple[int, int], str]]:
    x0, y0 = (int(c) for c in player.pos)
    for y in range(-(ROWS // 2), ROWS // 2 + 1):
        for x in range(-(COLUMNS // 2), COLUMNS // 2 + 1):
            yield (x, y), thing_at(world, (x0 + x, y0 + y))


def _nearest(seen: dict[tuple[int, int], str]) -> dict[str, tuple[int, int]]:
    """By kind, the nearest offset from the player, the nearest kind first."""
    nearest: dict[str, tuple[int, int]] = {}
    for offset in sorted(seen, key=lambda o: (abs(o[0]) + abs(o[1]), o)):
        if offset != (0, 0) and seen[offset] not in _GROUND:
            nearest.setdefault(seen[offset], offset)
    return nearest


def _way(offset: tuple[int, int]) -> str:
    x, y = offset
    ways = [(abs(x), "left" if x < 0 else "right"), (abs(y), "up" if y < 0 else "down")]
    return " ".join(f"{count} {name}" for count, name in ways if count)
