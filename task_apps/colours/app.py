"""The Colours task app: one picture, one question, paid for the right colour only.

Who does not look is right one time in four.
"""

from __future__ import annotations

from synth.taskapp.sdk import Episode, TaskApp
from task_apps.colours.pictures import HELD_OUT_FROM, QUESTION, is_right, messages

colours = TaskApp(
    "colours",
    name="Colours",
    description="Shows a square of one of four colours; 1 for its colour, else 0.",
    dataset={
        "id": "colours",
        "splits": ["train", "held_out"],
        "default_split": "train",
        "held_out_from_seed": HELD_OUT_FROM,
    },
)


@colours.task_info
def describe(seed: int) -> dict[str, object]:
    return {"prompt": QUESTION, "split": "held_out" if seed >= HELD_OUT_FROM else "train"}


@colours.episode
async def answer(ep: Episode) -> None:
    """Play one turn. env_config `blank = true` leaves the square out, so that no policy can know the answer."""
    reply = await ep.chat(messages(ep.seed, blank=ep.env_config.get("blank") is True))
    right = reply.finish_reason == "stop" and is_right(reply.content, ep.seed)
    ep.step(
        obs={"prompt": QUESTION, "completion": reply.content},
        reward=1.0 if right else 0.0,
        done=True,
        info={"right": right, "finish_reason": reply.finish_reason},
    )
