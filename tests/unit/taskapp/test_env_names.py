"""Which names a task app says it plays, and what a job with another one is told."""

from __future__ import annotations

from typing import Any

import pytest

from synth.taskapp.env_names import env_names, wrong_env_name


@pytest.mark.parametrize(
    "info",
    [
        {"taskset": {"id": "math", "name": "Math", "splits": ["train"]}},
        {"task": {"id": "crafter_classic", "name": "Crafter"}, "environment": "crafter"},
        {"taskset": "<circular type=dict>"},
        {"env_names": []},
        {"env_names": "crafter"},
        {"env_names": ["crafter", 7]},
        {"env_names": [""]},
        {"env_names": [str(n) for n in range(1001)]},
    ],
)
def test_an_app_that_lists_no_names_is_asked_for_any(info: dict[str, Any]):
    assert env_names(info) == ()
    assert wrong_env_name("anything", env_names(info), where="rl.toml:3", url="http://app") is None


def test_a_name_that_is_not_of_the_list_is_a_problem_with_the_nearest():
    names = env_names({"env_names": ["guess", "guess-hard"]})
    assert wrong_env_name(None, names, where="rl.toml:3", url="http://app") is None
    assert wrong_env_name("guess-hard", names, where="rl.toml:3", url="http://app") is None
    wrong = wrong_env_name("gues", names, where="rl.toml:3 [rollout].env_name", url="http://app")
    assert wrong is not None
    assert wrong.text() == (
        "rl.toml:3 [rollout].env_name: 'gues' is not an environment of the task app at http://app; "
        "expected 'guess', 'guess-hard'; write env_name = \"guess\""
    )
    far = wrong_env_name("crafter", [f"env{n}" for n in range(10)], where="", url="http://app")
    assert far is not None
    assert far.expected.endswith("'env7' and 2 more")
    assert far.fix == 'write env_name = "env0"'
