import json
from typing import Any

from openai import OpenAI

from synth.taskapp.sdk import Episode, TaskApp

maze = TaskApp("maze", name="Maze", description="A fork, then stairs: the way out is left, then down.", max_turns=2)
WHERE = {"type": "object", "properties": {"to": {"enum": ["left", "right", "up", "down"]}}}
TOOLS: Any = [{"type": "function", "function": {"name": "go", "parameters": WHERE}}]


@maze.episode
def play(ep: Episode) -> None:
    messages: list[Any] = [{"role": "user", "content": f"Find the way out of maze {ep.seed % 10}."}]
    with OpenAI(base_url=ep.base_url, api_key=ep.api_key, timeout=120) as client:
        for way in ("left", "down"):
            reply: Any = client.chat.completions.create(model="policy", messages=messages, tools=TOOLS)
            message = reply.choices[0].message
            calls = message.tool_calls or []
            went = [json.loads(call.function.arguments).get("to") for call in calls]
            messages += [message, *({"role": "tool", "tool_call_id": c.id, "content": "Stairs."} for c in calls)]
            ep.step(obs=went, reward=0.5 * (went == [way]), done=way == "down")
            if not calls:
                break
