"""The Math task app: one sum, one answer, paid only when it is exact."""

from __future__ import annotations

from synth.demo.math.problems import HELD_OUT_FROM, is_exact, operands, question
from synth.taskapp.sdk import Episode, TaskApp

math = TaskApp(
    "math",
    name="Mental arithmetic",
    description="Adds two numbers from 10 to 99; 1 for the exact sum, else 0.",
    rubric={
        "outcome": {
            "goal_text": "Work the sum out, and end with it.",
            "criteria": [
                {
                    "id": "correct",
                    "description": "The number that the reply ends with is the sum that was asked for.",
                    "weight": 0.8,
                    "scale": "binary",
                },
                {
                    "id": "plain",
                    "description": "The reply has the calculation and its result, and nothing else.",
                    "weight": 0.2,
                },
            ],
        },
        "events": None,
    },
    dataset={
        "id": "math",
        "splits": ["train", "held_out"],
        "default_split": "train",
        "held_out_from_seed": HELD_OUT_FROM,
    },
)


@math.task_info
def describe(seed: int) -> dict[str, object]:
    return {
        "prompt": question(*operands(seed)),
        "split": "held_out" if seed >= HELD_OUT_FROM else "train",
    }


@math.episode
async def answer(ep: Episode) -> None:
    a, b = operands(ep.seed)
    prompt = question(a, b)
    reply = await ep.chat([{"role": "user", "content": prompt}])
    finished = reply.finish_reason == "stop"
    exact = finished and is_exact(reply.content, a, b)
    ep.step(
        obs={"prompt": prompt, "completion": reply.content},
        reward=1.0 if exact else 0.0,
        done=True,
        info={"exact": exact, "finish_reason": reply.finish_reason, "worked_out": "=" in reply.content},
    )
