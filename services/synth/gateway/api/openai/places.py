"""The fields of a fine-tuning request that set values of our configuration."""

from __future__ import annotations

import re
from typing import Literal

from synth.api.fine_tuning.request import FineTuningRequest
from synth.api.fine_tuning.translate import EFFORT_FIELD
from synth.errors import Problem

Method = Literal["supervised", "dpo", "reinforcement"]

#: The field of the request that sets each place of the configuration, the longest place first.
_PLACES = {
    "[job].model": "model",
    "[model].base": "model",
    "[model].source": "model",
    "[job].data": "training_file",
    "[data].validation_path": "validation_file",
    "[data].seeds": "training_file",
    "[evaluation].seeds": "validation_file",
    "[evaluation]": "method.reinforcement.hyperparameters.eval_interval",
    "[grader]": "method.reinforcement.grader",
    "[judge]": "method.reinforcement.grader",
    "[services].task_url": "method.reinforcement.grader.url",
    "[rollout.policy_config]": "method.reinforcement.grader.policy_config",
    "[rollout.env_config]": "method.reinforcement.grader.env_config",
    "[rollout]": "method.reinforcement.grader",
    "[training]": "method.reinforcement.hyperparameters",
    "[hyperparameters]": "method.supervised.hyperparameters",
}
#: Configuration keys that have another name in the request.
_KEYS = {
    "[training]": {
        "learning_rate": "learning_rate_multiplier",
        "batch_size": "batch_size",
        "num_epochs": "n_epochs",
        "iterations_per_epoch": "n_epochs",
        "group_size": "compute_multiplier",
    },
    "[hyperparameters]": {
        "learning_rate": "learning_rate_multiplier",
        "batch_size": "batch_size",
        "n_epochs": "n_epochs",
    },
    "[evaluation]": {"instances": "eval_samples", "every_n_iters": "eval_interval"},
}
_SETTING = re.compile(r"(\[[a-z_]+\])[. ]([a-z_]+)")
_EXPERIMENTAL = 'extra_body={"allow_experimental": True}'


def place_in_request(problem: Problem, request: FineTuningRequest) -> Problem:
    """Move a problem with the configuration to the field of the request that causes it."""
    method = request.method.reinforcement if request.method else None
    if "[rollout.policy_config].thinking_" in problem.where and method and method.hyperparameters.reasoning_effort:
        fix = "leave it out, or name a model that thinks, such as a Thinking variant"
        return Problem(what=problem.what, expected='"default"', fix=fix, where=EFFORT_FIELD)
    kind: Method = "dpo" if request.method is not None and request.method.type == "dpo" else "supervised"
    fix = name_fields(problem.fix, kind).replace("--allow-experimental", _EXPERIMENTAL)
    where = problem.where
    for ours, theirs in _PLACES.items():
        _, result, rest = problem.where.partition(ours)
        if result:
            where = f"{_of_method(theirs, kind)}{rest}"
            break
    return Problem(
        what=name_fields(problem.what, kind), expected=name_fields(problem.expected, kind), fix=fix, where=where
    )


def name_fields(text: str, method: Method) -> str:
    """Replace each setting in a text by the field of the request that sets it.

    A setting that no field sets keeps its name.
    """

    def name(match: re.Match[str]) -> str:
        table, key = match.groups()
        field = _KEYS.get(table, {}).get(key)
        if field is None:
            return match[0]
        place = "method.reinforcement.hyperparameters" if table != "[hyperparameters]" else _PLACES[table]
        return f"{_of_method(place, method)}.{field}"

    return _SETTING.sub(name, text)


def _of_method(place: str, method: Method) -> str:
    return place.replace("method.supervised", "method.dpo") if method == "dpo" else place
