"""Tools for a model whose family writes no calls that can be read: refused, and in a rollout a warning."""

from __future__ import annotations

import json

import pytest

from synth.chat.families import family_of
from synth.errors import UserError
from synth.inference.api.requests import JobSampling, decode_request
from synth.inference.api.sampling_plan import find_ineffective, forced_functions

BODY = {
    "messages": [{"role": "user", "content": "a"}],
    "tools": [{"type": "function", "function": {"name": "f"}}],
}
JOB = JobSampling(max_tokens=3, constrain_tools=True)


@pytest.mark.parametrize(
    "template", ["", "<start_of_turn>", "<|im_sep|>", "<function_calls>", "<|channel|><|message|>"]
)
@pytest.mark.parametrize("choice", ["auto", "required", "none"])
def test_tools_that_no_grammar_reads(template: str, choice: str):
    request, family = (
        decode_request(json.dumps(BODY | {"tool_choice": choice}).encode(), max_choices=1),
        family_of(template),
    )
    assert forced_functions(request, JOB, family) == ()
    warned = [
        warning for warning in find_ineffective(request, JOB, family) if warning.startswith("tools has no effect")
    ]
    assert len(warned) == (choice != "none")
    if choice == "none":
        assert forced_functions(request, None, family) == ()
        return
    with pytest.raises(UserError) as refused:
        forced_functions(request, None, family)
    assert refused.value.problems[0].where == "tools"
