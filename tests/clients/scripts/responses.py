"""A client of the Responses API by its defaults: plays what each line of JSON names, and prints what came.

A request: client ("openai", "agents", "pydantic"), base_url and api_key. The reply: plain, streamed, structured, and
tool: the arguments of the call, then the reply to its result.
"""

import asyncio
import json
import os
import sys

import openai
import pydantic

QUESTION, RESULT = "What is 12 + 34?", "It is 46."


class Verdict(pydantic.BaseModel):
    even: bool


def play_openai():
    check = {"type": "function", "name": "check", "parameters": Verdict.model_json_schema(), "strict": False}
    with openai.OpenAI() as client:
        plain = client.responses.create(model="policy", input=QUESTION)
        turns = [{"role": "user", "content": QUESTION}, *plain.output, {"role": "user", "content": "And with 1 more?"}]
        again = client.responses.create(model="policy", input=turns)
        with client.responses.stream(model="policy", input=QUESTION) as stream:
            for _ in stream:
                pass
            streamed = stream.get_final_response()
        called = client.responses.create(model="policy", input=QUESTION, tools=[check], tool_choice="required")
        [call] = [item for item in called.output if item.type == "function_call"]
        result = {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}
        turns = [{"role": "user", "content": QUESTION}, *called.output, result]
        after = client.responses.create(model="policy", input=turns, tools=[check])
        parsed = client.responses.parse(model="policy", input=QUESTION, text_format=Verdict)
    return {
        "plain": [plain.output_text, again.output_text],
        "streamed": streamed.output_text,
        "tool": [json.loads(call.arguments), after.output_text],
        "structured": parsed.output_parsed.model_dump(),
    }


async def play_agents():
    import agents

    agents.set_tracing_disabled(True)
    arguments = []

    @agents.function_tool
    def check(even: bool) -> str:
        arguments.append({"even": even})
        return RESULT

    asked = agents.Agent(name="a", instructions="Be brief.", model="policy")
    plain = await agents.Runner.run(asked, QUESTION)
    more = [*plain.to_input_list(), {"role": "user", "content": "And with 1 more?"}]
    again = await agents.Runner.run(asked, more)
    streamed = agents.Runner.run_streamed(asked, QUESTION)
    async for _ in streamed.stream_events():
        pass
    settings = agents.ModelSettings(tool_choice="required")
    caller = agents.Agent(name="b", model="policy", tools=[check], model_settings=settings)
    after = await agents.Runner.run(caller, QUESTION)
    judge = agents.Agent(name="c", model="policy", output_type=Verdict)
    parsed = await agents.Runner.run(judge, QUESTION)
    return {
        "plain": [plain.final_output, again.final_output],
        "streamed": streamed.final_output,
        "tool": [arguments[0], after.final_output],
        "structured": parsed.final_output.model_dump(),
    }


async def play_pydantic():
    from pydantic_ai import Agent, NativeOutput

    asked = Agent("openai:policy", instructions="Be brief.")
    plain = await asked.run(QUESTION)
    again = await asked.run("And with 1 more?", message_history=plain.all_messages())
    async with asked.run_stream(QUESTION) as stream:
        streamed = await stream.get_output()
    # Its structured output is by default a tool that the model must call.
    caller = Agent("openai:policy", output_type=Verdict)
    called = await caller.run(QUESTION)
    after = await caller.run("Are you sure?", message_history=called.all_messages())
    parsed = await Agent("openai:policy", output_type=NativeOutput(Verdict)).run(QUESTION)
    return {
        "plain": [plain.output, again.output],
        "streamed": streamed,
        "tool": [called.output.model_dump(), str(after.output)],
        "structured": parsed.output.model_dump(),
    }


def play(request):
    os.environ.update(OPENAI_BASE_URL=request["base_url"], OPENAI_API_KEY=request["api_key"])
    match request["client"]:
        case "openai":
            return play_openai()
        case "agents":
            return asyncio.run(play_agents())
        case "pydantic":
            return asyncio.run(play_pydantic())


for line in sys.stdin:
    print(json.dumps(play(json.loads(line)) | {"version": openai.__version__}), flush=True)
