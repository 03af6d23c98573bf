"""An agent of an installed openai SDK, one of many turns: reads what to play as a line of JSON, and prints what came.

A request: base_url and api_key (absent: from the environment variables in `env`), kind ("sync", "async"), streamed,
shared: whether the client of the rollout is made of one that goes nowhere, whose connections it shares,
api: "chat", or "responses", whose second turn names the first one.
"""

import asyncio
import json
import os
import sys

import openai

ASK = [{"role": "user", "content": "What is 12 + 34?"}]
NOWHERE = {"base_url": "http://127.0.0.1:1/v1", "api_key": "none"}
NEXT = {"role": "user", "content": "And with 1 more?"}


def text_of(chunks):
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def respond(options, streamed):
    with openai.OpenAI(**options) as client:
        said, previous = [], {}
        for turn in ({"input": ASK[0]["content"]}, {"input": [NEXT]}):
            reply = client.responses.create(model="policy", stream=streamed, **turn, **previous)
            if streamed:
                reply = next(e.response for e in reply if e.type in ("response.completed", "response.incomplete"))
            said.append(reply.output_text)
            previous = {"previous_response_id": reply.id}
        return said


def converse(options, streamed, shared):
    with openai.OpenAI(**(NOWHERE if shared else options)) as made:
        client = made.with_options(**options) if shared else made
        said, messages = [], list(ASK)
        for _ in range(2):
            reply = client.chat.completions.create(model="policy", messages=messages, stream=streamed)
            said.append(text_of(reply) if streamed else reply.choices[0].message.content)
            messages += [{"role": "assistant", "content": said[-1]}, NEXT]
        return said


async def converse_async(options, streamed, shared):
    async with openai.AsyncOpenAI(**(NOWHERE if shared else options)) as made:
        client = made.with_options(**options) if shared else made
        said, messages = [], list(ASK)
        for _ in range(2):
            reply = await client.chat.completions.create(model="policy", messages=messages, stream=streamed)
            said.append(text_of([chunk async for chunk in reply]) if streamed else reply.choices[0].message.content)
            messages += [{"role": "assistant", "content": said[-1]}, NEXT]
        return said


def play(asked):
    os.environ.update(asked.get("env", {}))
    options = {name: asked[name] for name in ("base_url", "api_key") if name in asked}
    how = (options, asked["streamed"], asked.get("shared", False))
    try:
        if asked.get("api") == "responses":
            return {"said": respond(options, asked["streamed"])}
        said = asyncio.run(converse_async(*how)) if asked["kind"] == "async" else converse(*how)
    except openai.APIError as error:
        return {"error": type(error).__name__, "message": str(error)}
    finally:
        for name in asked.get("env", {}):
            del os.environ[name]
    return {"said": said}


for line in sys.stdin:
    print(json.dumps(play(json.loads(line)) | {"version": openai.__version__}), flush=True)
