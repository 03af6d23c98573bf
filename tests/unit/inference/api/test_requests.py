"""What is read of a chat request: the extras that published task apps send, and a null wherever there may be one."""

from __future__ import annotations

import msgspec
import pytest

from synth.errors import UserError
from synth.inference.api.requests import JobSampling, build_sampling_params, decode_request, one_call
from synth.inference.api.sampling_plan import build_conversation
from synth.methods.eval import EvalJob
from synth.methods.rollouts import RolloutSettings, Sampling

TOOLS = [{"type": "function", "function": {"name": "move"}}]


def read(**body: object):
    return decode_request(
        msgspec.json.encode({"messages": [{"role": "user", "content": "go"}]} | body), max_choices=128
    )


@pytest.mark.parametrize(
    ("asked", "ends"),
    [
        ({"tools": TOOLS, "stop_after_tool_calls": 1}, True),
        ({"tools": TOOLS, "extra_body": {"stop_after_tool_calls": 1}}, True),
        ({"tools": TOOLS, "parallel_tool_calls": False}, True),
        ({"tools": TOOLS, "parallel_tool_calls": True}, False),
        ({"tools": TOOLS, "stop_after_tool_calls": 2}, False),
        ({"tools": TOOLS, "tool_choice": "none", "parallel_tool_calls": False}, False),
        ({"stop_after_tool_calls": 1}, False),
    ],
)
def test_a_reply_that_may_have_one_call_ends_after_it(asked, ends):
    assert one_call(read(**asked)) is ends


def test_tools_are_switched_off_under_either_name():
    assert build_conversation(read(tools=TOOLS, tool_choice="none")).tools == ()
    assert build_conversation(read(tools=TOOLS, function_call="none")).tools == ()
    assert build_conversation(read(tools=TOOLS, function_call={"name": "move"}, tool_choice="auto")).tools == TOOLS


def test_what_a_published_task_app_sends_is_read():
    body = read(
        model="Qwen/Qwen3-0.6B",
        thinking_mode="think",
        thinking_budget=1028,
        tools=TOOLS,
        tool_choice={"type": "function", "function": {"name": "move"}},
        function_call={"name": "move"},
        parallel_tool_calls=False,
        stop_after_tool_calls=1,
        extra_body={
            "chat_template_kwargs": {"enable_thinking": True, "thinking_budget": 1028},
            "stop_after_tool_calls": 1,
        },
    )
    assert build_conversation(body).thinking is True


def test_a_null_is_as_good_as_nothing():
    names = "stream stream_options temperature top_p max_tokens stop seed n logprobs tools tool_choice extra_body"
    more = "function_call parallel_tool_calls stop_after_tool_calls thinking_mode chat_template_kwargs return_token_ids"
    given = read(**dict.fromkeys(f"{names} {more}".split()))
    assert build_sampling_params(given, None, default_max_tokens=9) == build_sampling_params(
        read(), None, default_max_tokens=9
    )
    assert build_conversation(read(extra_body={"chat_template_kwargs": None})).thinking is False


def test_a_rollout_is_sampled_as_its_jobs_file_says():
    sampling = Sampling(temperature=0.5, max_tokens=9, top_p=0.9, top_k=4, thinking=True, thinking_budget=3)
    rollout = RolloutSettings(
        task_url="http://127.0.0.1:9",
        env_name=None,
        policy_name="policy",
        max_turns=1,
        ops=(),
        env_config={},
        policy_config={},
        sampling=sampling,
        max_concurrent_rollouts=1,
        failure_reward=0.0,
        rollout_timeout_s=1.0,
        max_retries=0,
        constrain_tools=True,
    )
    job = JobSampling.of(EvalJob(model="m", base_model="m", seeds=[0], rollout=rollout, tags={}))
    params = build_sampling_params(read(temperature=2, top_p=0.1, max_tokens=400), job, default_max_tokens=9)
    assert (params.temperature, params.max_tokens, params.top_p, params.top_k) == (0.5, 9, 0.9, 4)
    assert (job.thinking, job.thinking_budget, job.constrain_tools) == (True, 3, True)


@pytest.mark.parametrize("body", [{"stop": ["x" * 10_000_000] * 5}, {"thinking_mode": "x" * 10_000_000}])
def test_an_error_shows_little_of_a_long_value(body: dict[str, object]):
    with pytest.raises(UserError) as refused:
        read(**body)
    assert len(str(refused.value)) < 500
