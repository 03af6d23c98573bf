"""Conversations that other tools write in shapes of their own, as the messages that are trained on.

- ShareGPT: `{"conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}], "system"?, "tools"?}`;
- Alpaca: `{"instruction", "input"?, "output", "system"?, "history"?}`;
- prompt and completion: `{"prompt", "completion", "system"?}`, each a text or messages, of which the completion is
  learnt from.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta

from synth.chat.messages import TrainingMessage

SHAREGPT = "sharegpt"
ALPACA = "alpaca"
PROMPT_COMPLETION = "prompt_completion"

_ROLES = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "bing", "model", "function_call"), "assistant"),
    **dict.fromkeys(("tool", "observation", "function_response"), "tool"),
}
#: Where an image is shown, in the text of a row that has images beside its text.
_IMAGE = "<image>"
#: What a row keeps that stands beside its text.
_KEPT = ("tools", "tool_choice", "metadata", "images", "image_url")


class _Turn(msgspec.Struct, gc=False, kw_only=True):
    """A message, under either of the names in use."""

    speaker: str | None = msgspec.field(default=None, name="from")
    role: str | None = None
    value: str | None = None
    content: str | None = None
    weight: Annotated[float, Meta(ge=0, le=1)] | None = None


class _ShareGpt(msgspec.Struct, gc=False, kw_only=True):
    conversations: list[_Turn]
    system: str | None = None
    tools: str | list[dict[str, Any]] | None = None
    image: str | list[str] | None = None


class _Alpaca(msgspec.Struct, gc=False, kw_only=True):
    instruction: str
    input: str | None = None
    output: str
    system: str | None = None
    history: list[tuple[str, str]] | None = None


class _PromptCompletion(msgspec.Struct, gc=False, kw_only=True):
    prompt: str | list[TrainingMessage]
    completion: str | list[TrainingMessage]
    system: str | None = None


_SHAREGPT_ROW = msgspec.json.Decoder(_ShareGpt)
_ALPACA_ROW = msgspec.json.Decoder(_Alpaca)
_PROMPT_COMPLETION_ROW = msgspec.json.Decoder(_PromptCompletion)


#: Whether a reply is a good one, in the datasets of KTO (arXiv 2402.01306), and what holds that reply.
_VERDICTS = ("label", "kto_tag")
_REPLIES = ("conversations", "completion", "output")


@dataclass(frozen=True)
class Reshaped:
    """A row in the shape that is trained on. places: where in the line each of its messages came from."""

    shape: str
    data: dict[str, Any]
    places: list[str] = field(default_factory=list[str])


def reshape(line: bytes, data: dict[str, Any]) -> Reshaped | tuple[str, str] | None:
    """The row of a line that is in one of these shapes; None for one that is in none of them.

    A problem is where something is wrong, and what. data: the line, decoded. Raises `msgspec.ValidationError` for a
    value of the wrong type.
    """
    for key in _VERDICTS:
        # A reply that somebody found bad would be learned.
        if isinstance(data.get(key), bool) and any(data.get(name) is not None for name in _REPLIES):
            return f"$.{key}", "an unpaired preference; expected a reply to learn, or a pair of `chosen` and `rejected`"
    if data.get("messages") is not None:
        return None
    if data.get("conversations") is not None:
        return _from_sharegpt(_SHAREGPT_ROW.decode(line), data)
    if data.get("instruction") is not None:
        return _from_alpaca(_ALPACA_ROW.decode(line), data)
    if data.get("completion") is not None:
        _PROMPT_COMPLETION_ROW.decode(line)
        return _from_completion(data)
    return None


def instruction_text(instruction: str, more: str | None) -> str:
    """What the user says in a row of Alpaca's shape: the instruction, and its input in a paragraph of its own."""
    return f"{instruction}\n\n{more}" if more else instruction


def _from_sharegpt(row: _ShareGpt, data: dict[str, Any]) -> Reshaped | tuple[str, str]:
    messages, places = _system(row.system)
    for i, turn in enumerate(row.conversations):
        place = f"$.conversations[{i}]"
        named, speaker = ("role", turn.role) if turn.speaker is None else ("from", turn.speaker)
        if speaker not in _ROLES:
            return f"{place}.{named}", f"{str(speaker)[:40]!r}; expected one of {', '.join(_ROLES)}"
        text = turn.content if turn.value is None else turn.value
        if text is None:
            return place, "a message without `value`"
        message: dict[str, Any] = {"role": _ROLES[speaker], "content": text}
        if speaker == "function_call":
            calls = _calls(text)
            if calls is None:
                return place, 'a function_call that is not JSON of {"name", "arguments"}, or a list of such'
            message = {"role": "assistant", "tool_calls": calls}
        if turn.weight is not None:
            message["weight"] = turn.weight
        messages.append(message)
        places.append(place)
    kept = _kept(data)
    if row.image is not None:
        kept["images"] = [row.image] if isinstance(row.image, str) else row.image
    if isinstance(row.tools, str):
        tools = _tools(row.tools)
        if tools is None:
            return "$.tools", "a text that is not a JSON list of tools"
        kept |= {"tools": tools}
    wrong = _without_image_marks(messages, places) if kept.get("images") or kept.get("image_url") else None
    return wrong or Reshaped(SHAREGPT, {"messages": messages, **kept}, places)


def _from_alpaca(row: _Alpaca, data: dict[str, Any]) -> Reshaped:
    messages, places = _system(row.system)
    for i, (asked, answered) in enumerate(row.history or ()):
        messages += [_user(asked), _assistant(answered)]
        places += [f"$.history[{i}][0]", f"$.history[{i}][1]"]
    messages += [_user(instruction_text(row.instruction, row.input)), _assistant(row.output)]
    return Reshaped(ALPACA, {"messages": messages, **_kept(data)}, [*places, "$.instruction", "$.output"])


def _from_completion(data: dict[str, Any]) -> Reshaped:
    messages, places = _system(data.get("system"))
    prompt, completion = data["prompt"], data["completion"]
    if isinstance(prompt, str):
        messages.append(_user(prompt))
        places.append("$.prompt")
    else:
        # Only the completion is learnt from.
        context = cast(list[dict[str, Any]], prompt)
        messages += [{**m, "weight": 0} if m.get("role") == "assistant" else m for m in context]
        places += [f"$.prompt[{i}]" for i in range(len(context))]
    if isinstance(completion, str):
        messages.append(_assistant(completion))
        places.append("$.completion")
    else:
        messages += completion
        places += [f"$.completion[{i}]" for i in range(len(completion))]
    return Reshaped(PROMPT_COMPLETION, {"messages": messages, **_kept(data)}, places)


def _system(text: str | None) -> tuple[list[dict[str, Any]], list[str]]:
    return ([{"role": "system", "content": text}], ["$.system"]) if text else ([], [])


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def _kept(data: dict[str, Any]) -> dict[str, Any]:
    return {name: data[name] for name in _KEPT if data.get(name) is not None}


def _calls(text: str) -> list[dict[str, Any]] | None:
    """The tool calls that a text spells; None where it spells none."""
    try:
        value: Any = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    found = cast(list[Any], value if isinstance(value, list) else [value])
    calls = [cast(dict[str, Any], call) for call in found if isinstance(call, dict)]
    good = calls and len(calls) == len(found) and all(isinstance(call.get("name"), str) for call in calls)
    return [{"name": call["name"], "arguments": call.get("arguments")} for call in calls] if good else None


def _tools(text: str) -> list[Any] | None:
    if not text.strip():
        return []
    try:
        value: Any = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    return cast(list[Any], value) if isinstance(value, list) else None


def _without_image_marks(messages: list[dict[str, Any]], places: list[str]) -> tuple[str, str] | None:
    """Take the marks of images out of the first user message, in front of which all of a row's images are shown."""
    first = next((i for i, message in enumerate(messages) if message["role"] == "user"), None)
    for i, message in enumerate(messages):
        if _IMAGE not in message.get("content", ""):
            continue
        text = _after_marks(message["content"])
        if i != first or _IMAGE in text:
            return places[i], (
                f"{_IMAGE} elsewhere than at the beginning of the first message of the user, where a row's images are "
                "shown; expected the images as parts of their messages"
            )
        message["content"] = text
    return None


def _after_marks(text: str) -> str:
    text = text.lstrip()
    while text.startswith(_IMAGE):
        text = text.removeprefix(_IMAGE).lstrip()
    return text
