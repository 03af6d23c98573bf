"""The scripted expert, and the examples that it gives."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from synth.datasets.check import FileCheck
from synth.events import FileReady
from task_apps.crafter.dataset import rows
from task_apps.crafter.env import Game
from task_apps.crafter.expert import Expert

ROOT = Path(__file__).parents[4]


def unlocked(seed: int, steps: int) -> list[str]:
    game = Game(seed, area=(32, 32), max_steps=steps)
    expert = Expert(game)
    while not game.play(expert.turn(5)).done:
        pass
    return game.unlocked


def test_the_expert_unlocks_several_achievements_in_each_world():
    found = [unlocked(seed, 200) for seed in range(4)]
    assert min(map(len, found)) >= 6
    assert sum(map(len, found)) / len(found) >= 10
    assert all({"collect_wood", "place_table", "make_wood_pickaxe"} <= set(names) for names in found)


def test_a_turn_of_the_expert_has_no_more_actions_than_it_may():
    game = Game(1, area=(24, 24))
    expert = Expert(game)
    assert {len(game.play(expert.turn(2)).played) for _ in range(20)} == {1, 2}


def dataset(**options: Any) -> list[dict[str, Any]]:
    config = {"area": 24, **options.pop("env_config", {})}
    return list(rows(range(3), turns=4, env_config=config, policy_config=options))


def test_a_row_is_an_episode_that_ends_with_a_reply():
    for row in dataset():
        roles = [message["role"] for message in row["messages"]]
        assert roles == ["system", *["user", "assistant", "tool"] * 3, "user", "assistant"]
        assert row["tools"][0]["function"]["name"] == "interact"
        assert all(isinstance(m["content"], str) for m in row["messages"])


def test_rows_of_text_alone_have_no_tools_and_those_with_pictures_have_them():
    row = dataset(action_format="text", use_vision=True)[0]
    assert "tools" not in row
    assert row["messages"][-1]["content"].startswith("actions: ")
    image, text = row["messages"][1]["content"]
    assert image["image_url"]["url"].startswith("data:image/png;base64,")
    assert text["text"].startswith("Step 0")
    only = dataset(image_only_mode=True)[0]
    assert [part["type"] for part in only["messages"][1]["content"]] == ["image_url"]


def test_the_command_writes_a_file_that_the_platform_takes(tmp_path: Path):
    def write(*flags: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "task_apps.crafter.dataset", "--out", str(tmp_path / "rows.jsonl"), *flags]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    made = write("--episodes", "3", "--turns", "2", "--images", "--area", "24")
    assert (made.returncode, made.stderr) == (0, "")
    content = (tmp_path / "rows.jsonl").read_bytes()
    assert [json.loads(line)["metadata"]["seed"] for line in content.splitlines()] == [0, 1, 2]
    check = FileCheck()
    check.feed(content)
    assert isinstance(check.finish(), FileReady)
    refused = write("--episodes", "1", "--image-size", "65")
    assert refused.returncode == 1
    assert refused.stderr.startswith("env.config.image_size: 65; expected pixels")
