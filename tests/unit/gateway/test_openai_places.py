"""Texts about the configuration name the fields of the request that it was made from."""

from __future__ import annotations

import pytest

from synth.api.fine_tuning.request import FineTuningRequest
from synth.errors import Problem
from synth.gateway.api.openai.places import name_fields, place_in_request

_REINFORCEMENT = "method.reinforcement.hyperparameters"


@pytest.mark.parametrize(
    ("text", "method", "shown"),
    [
        (
            "submit it again with half the [training] learning_rate",
            "reinforcement",
            f"submit it again with half the {_REINFORCEMENT}.learning_rate_multiplier",
        ),
        ("[training].batch_size = 64", "reinforcement", f"{_REINFORCEMENT}.batch_size = 64"),
        ("[evaluation] every_n_iters = 1", "reinforcement", f"{_REINFORCEMENT}.eval_interval = 1"),
        ("[hyperparameters].n_epochs = 9", "supervised", "method.supervised.hyperparameters.n_epochs = 9"),
        ("[hyperparameters].batch_size = 9", "dpo", "method.dpo.hyperparameters.batch_size = 9"),
        # No field of the request sets these.
        ("raise [training] clip_high", "reinforcement", "raise [training] clip_high"),
        ("give [evaluation] more instances", "reinforcement", "give [evaluation] more instances"),
    ],
)
def test_a_setting_has_the_name_of_its_field(text, method, shown):
    assert name_fields(text, method) == shown


def test_a_problem_names_fields_in_all_its_sentences():
    request = FineTuningRequest.model_validate({"model": "m", "training_file": "file_1"})
    problem = Problem(
        what="8 seeds, and [training].batch_size = 64",
        expected="at least 64 seeds",
        fix="lower [training] batch_size",
        where="fine_tuning.job [data].seeds",
    )
    moved = place_in_request(problem, request)
    assert moved.where == "training_file"
    assert moved.what == f"8 seeds, and {_REINFORCEMENT}.batch_size = 64"
    assert moved.fix == f"lower {_REINFORCEMENT}.batch_size"
