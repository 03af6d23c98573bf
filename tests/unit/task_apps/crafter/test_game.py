"""The game: the same as the package's, the same for a seed everywhere, whatever is shown of it."""

from __future__ import annotations

import collections
import hashlib
import io
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import crafter
import numpy as np
import pytest
from PIL import Image

from task_apps.crafter.difficulty import BOUNDS, Difficulty, episode_of, nearby
from task_apps.crafter.env import ACTIONS, Game
from task_apps.crafter.world import CrafterWorld, _InOrder

ROOT = Path(__file__).parents[4]
AREA = (24, 24)
DIGEST = """
import hashlib, random
from task_apps.crafter.difficulty import BOUNDS, Difficulty, episode_of, nearby
from task_apps.crafter.env import ACTIONS, Game
game, chance = Game(3, area=(24, 24), image_size=32), random.Random(0)
while not (turn := game.play([chance.choice(ACTIONS[:6])])).done and game.steps < 250: pass
print(hashlib.sha256(turn.observation.pictures[0].png + turn.observation.text.encode()).hexdigest())
"""


def played(seed: int, steps: int, **options: Any) -> Game:
    """A game after random walks and blows, which reach the dark."""
    game, chance = Game(seed, area=AREA, **options), random.Random(0)
    for _ in range(steps):
        game.play([chance.choice(ACTIONS[:6])])
    return game


def test_the_game_is_that_of_the_package_step_by_step_and_pixel_by_pixel():
    ours, theirs = CrafterWorld(seed=1, area=AREA), crafter.Env(seed=1, area=AREA, length=10_000)
    ours.reset()
    assert (theirs.reset() == ours.picture(64)).all()
    # The one thing that the package leaves to chance: the order of the creatures in a chunk.
    chunks: Any = collections.defaultdict(_InOrder)
    for thing in theirs._world.objects:
        chunks[theirs._world.chunk_key(thing.pos)].add(thing)
    theirs._world._chunks = chunks
    chance, dark = random.Random(2), 0
    for _ in range(200):
        action = chance.choice([0, 5, *range(1, 5)])
        picture, reward, dead, info = theirs.step(action)
        _, our_reward, our_dead, our_info = ours.step(action)
        assert (picture == ours.picture(64)).all()
        assert (reward, bool(dead), info["inventory"]) == (our_reward, bool(our_dead), our_info["inventory"])
        dark += ours.dark
        if dead:
            break
    assert dark > 5


def test_a_seed_is_the_same_episode_in_every_process():
    digests = {
        subprocess.run(
            [sys.executable, "-c", DIGEST],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": "shared:services:."},
            check=True,
            capture_output=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(digests) == 1


def test_a_game_goes_on_the_same_whether_and_however_it_is_shown():
    last = {}
    for size, images in ((0, 1), (64, 1), (96, 5)):
        game = played(5, 200, image_size=size, images=images)
        last[size] = game.look().text
    assert len(set(last.values())) == 1
    assert "It is dark." in last[0]


def test_another_seed_is_another_world_and_a_begun_one_is_begun_again():
    first = Game(1, area=AREA)
    begun = first.look().text
    first.play(["move_left"] * 5)
    assert Game(1, area=AREA).look().text == begun
    assert Game(2, area=AREA).look().text != begun


@pytest.mark.parametrize("difficulty", BOUNDS)
def test_a_difficulty_is_a_seeds_first_world_of_that_tier(difficulty: Difficulty):
    bounds = BOUNDS[difficulty]
    for seed in range(12):
        *earlier, chosen = (nearby(seed, AREA, episode=n) for n in range(1, episode_of(seed, AREA, difficulty) + 1))
        within = [trees >= bounds.least_trees and hostiles <= bounds.most_hostiles for trees, hostiles in earlier]
        assert not any(within)
        assert chosen[0] >= bounds.least_trees
        assert chosen[1] <= bounds.most_hostiles


def test_a_world_of_a_tier_is_one_that_the_package_makes_of_the_seed():
    seed = next(n for n in range(12) if episode_of(n, AREA, "easy") > 1)
    theirs = crafter.Env(seed=seed, area=AREA)
    pictures = [theirs.reset() for _ in range(episode_of(seed, AREA, "easy"))]
    assert (Game(seed, area=AREA, difficulty="easy").world.picture(64) == pictures[-1]).all()
    assert (Game(seed, area=AREA).world.picture(64) == pictures[0]).all()
    assert (pictures[0] != pictures[-1]).any()


def test_a_turn_plays_its_actions_until_the_episode_ends():
    game = Game(1, area=AREA, max_steps=7)
    turn = game.play(["noop"] * 5)
    assert (len(turn.played), turn.done) == (5, False)
    turn = game.play(["noop"] * 5)
    assert (len(turn.played), turn.truncated, turn.dead) == (2, True, False)


def test_a_turn_ends_with_the_player():
    game = Game(1, area=AREA)
    x, y = game.player.pos
    game.world.world[x - 1, y] = "lava"
    turn = game.play(["noop", "move_left", "noop"])
    assert (turn.played, turn.dead, turn.truncated) == (["noop", "move_left"], True, False)
    assert turn.reward == pytest.approx(-0.9)


def test_what_is_unlocked_is_paid_once_and_told():
    game = Game(7, area=AREA)
    game.player.inventory.update(sapling=2, wood=9)
    turn = game.play(["place_table"])
    assert (turn.reward, turn.unlocked, turn.events) == (1.0, ["place_table"], ["place_table"])
    assert "New: place_table." in turn.observation.text
    assert "-2 wood" in turn.observation.text
    assert "You face down: table." in turn.observation.text
    turn = game.play(["move_left", "place_plant", "move_left", "make_wood_pickaxe"])
    assert {"place_plant"} <= set(turn.unlocked)
    again = game.play(["move_right", "place_table"])
    assert (again.unlocked, again.events) == ([], ["place_table"])
    assert again.reward < 1


@pytest.mark.parametrize("size", [32, 64, 256])
def test_a_picture_is_a_png_of_its_size(size: int):
    picture = Game(1, area=AREA, image_size=size).look().pictures[0]
    shown = Image.open(io.BytesIO(picture.png))
    assert (shown.format, shown.size) == ("PNG", (size, size))
    assert len(np.unique(np.asarray(shown))) > 5
    assert picture.digest() == {
        "sha256": hashlib.sha256(picture.png).hexdigest(),
        "size": size,
        "bytes": len(picture.png),
    }


def test_the_latest_actions_of_a_turn_have_a_picture_each():
    game = Game(1, area=AREA, image_size=32, images=3)
    pictures = game.play(["move_left", "move_up", "move_right", "move_down", "noop"]).observation.pictures
    assert len({picture.png for picture in pictures}) > 1
    assert len(pictures) == 3
    assert pictures[-1].png == game.look().pictures[0].png
