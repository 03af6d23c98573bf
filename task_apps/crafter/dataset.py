"""The SFT dataset of Crafter: `python -m task_apps.crafter.dataset --out crafter.jsonl --episodes 200`.

The scripted expert plays training seeds; a row is one episode, in the very words, tools and pictures of the task app.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from synth.errors import UserError
from task_apps.crafter.app import begin
from task_apps.crafter.difficulty import BOUNDS
from task_apps.crafter.expert import Expert
from task_apps.crafter.prompts import Conversation, Decision, assistant_message, tools
from task_apps.crafter.settings import EnvSettings, PolicySettings, read_settings


def rows(
    seeds: range, *, turns: int, env_config: dict[str, Any], policy_config: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield a conversation for each seed, of `turns` replies or fewer, the same for the same settings.

    env_config, policy_config: as of a job. Raises UserError for a config that the task app would refuse.
    """
    for seed in seeds:
        env, policy = read_settings(env_config, policy_config, seed=seed)
        yield {
            "messages": _play(seed, turns, env, policy),
            **({"tools": tools(env)} if policy.calls_tools else {}),
            "metadata": {"seed": seed},
        }


def _play(seed: int, turns: int, env: EnvSettings, policy: PolicySettings) -> list[dict[str, Any]]:
    turns = min(turns, env.max_steps_per_episode or turns)
    game = begin(seed, env, policy)
    expert = Expert(game)
    conversation = Conversation(env, policy, game.look())
    for number in range(turns):
        shown = conversation.messages()
        turn = game.play(expert.turn(env.max_actions))
        reply = assistant_message(turn.played, policy, number=number)
        if turn.done or number + 1 == turns:
            return [*shown, reply]
        conversation.played(reply, Decision(turn.played), turn.observation)
    raise ValueError(f"{turns} turns: a row needs one at least")


def main() -> int:
    parser = argparse.ArgumentParser(prog="task_apps.crafter.dataset", description="Write the SFT dataset.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--episodes", type=int, default=200, help="rows, each of a seed of its own")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--turns", type=int, default=20, help="replies of a row, at most")
    parser.add_argument("--images", action="store_true", help="with pictures beside the text")
    parser.add_argument("--image-only", action="store_true", help="with pictures in place of the text")
    parser.add_argument("--action-format", choices=("tool", "text"), default="tool")
    parser.add_argument("--area", type=int, help="cells of each side of the world")
    parser.add_argument("--difficulty", choices=("normal", *BOUNDS), help="which of a seed's worlds is played")
    parser.add_argument("--max-actions", type=int, help="actions of a turn, at most")
    parser.add_argument("--image-size", type=int, help="pixels of each side of a picture")
    options = parser.parse_args()
    if options.turns < 1:
        parser.error(f"argument --turns: {options.turns}; expected 1 or more")
    env_config = {
        key: value
        for key in ("area", "difficulty", "max_actions", "image_size")
        if (value := getattr(options, key)) is not None
    }
    policy_config = {"action_format": options.action_format, "use_vision": options.images or options.image_only}
    policy_config |= {"image_only_mode": True} if options.image_only else {}
    seeds = range(options.first_seed, options.first_seed + options.episodes)
    try:
        with options.out.open("w", encoding="utf-8") as file:
            for row in rows(seeds, turns=options.turns, env_config=env_config, policy_config=policy_config):
                file.write(json.dumps(row) + "\n")
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
