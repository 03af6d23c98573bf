"""docs/events.md: the catalogue for people."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from synth.bus.server.permissions import may_publish
from synth.errors import Problem
from synth.events import BlobRef, LineProblem, LoraShape, ModelRef
from synth.events.catalogue import CATALOGUE, SERVICES, EventSpec
from synth.work import TASKS

_HEAD = """\
# Events

Every fact of the platform is one event, a JSON body on the subject `<entity>.<fact>.<org>.<key>` of the JetStream
stream `EVENTS`. The key is the job's id, or the file's for `file.*`. The stream's sequence is the event's `seq`: every
reader sees one order, and can go on from any point of it. This page and [asyncapi.yaml](asyncapi.yaml) are generated
from the catalogue (`make contracts`).

**Publisher**: the only role whose user on the bus may publish it. *owner* is the holder of the job's attempt: the
trainer of a training job, the collector of an evaluation. **Readers** act on it: *queue*, where one replica of the
service gets it, or *follow*, where each process that works for that job reads its events in order, past ones too. (The
gateway projects every event into its read model, and streams it to watchers.) **Write**, how an append is protected:

| write | what it expects |
|---|---|
| once | nothing but its own deterministic id: a retry is recognised |
| cas | the last sequence of the job's lifecycle, so that two writers cannot both decide |
| fenced | that this attempt's `job.started` is still the last one, so that a worker that was given up cannot commit |
| chain | the last sequence of its own subject, so that there is one event for each step of the chain |

Reading them over HTTP, by page or as a stream: [api.md](api.md#events). On the bus itself: the subject filter
`*.*.*.<job id>` is one job, `*.*.<org>.>` one organisation, `train.step.>` one kind of fact.
"""
_USERS = """
## What each user of the bus can do

With a service's credential, in any way that nats-server has: nothing else is stored, changed or acknowledged, and
nothing else is read ([decision 57](decisions.md#57-each-service-has-an-account-of-its-own-on-the-bus)). Every service
reads the whole log, `EVENTS`.

| user | appends | queues tasks | writes the buckets | reads beside the log | takes from |
|---|---|---|---|---|---|
"""
_CARRIED = (BlobRef, ModelRef, LoraShape, LineProblem, Problem)


def events_page() -> str:
    """Return the page as Markdown."""
    parts = [_HEAD, "\n## All of them\n\n| event | publisher | readers | write |\n|---|---|---|---|\n"]
    parts += [_row(spec) for spec in CATALOGUE.values()]
    parts.append("\n## Each of them\n")
    parts += [_section(spec) for spec in CATALOGUE.values()]
    parts.append("\n## Shared types\n")
    parts += [f"\n### {cls.__name__}\n\n{_text(cls)}\n\n{_fields(cls)}" for cls in _CARRIED]
    parts.append(_tasks())
    parts.append(_USERS + "".join(_user(service) for service in SERVICES))
    return "".join(parts)


def _row(spec: EventSpec) -> str:
    anchor = spec.type.replace(".", "")
    readers = ", ".join(f"{role.value} ({reading.value})" for role, reading in spec.reads.items())
    return f"| [`{spec.type}`](#{anchor}) | {spec.by.value} | {readers} | {spec.write.value} |\n"


def _section(spec: EventSpec) -> str:
    return f"\n### {spec.type}\n\n{_text(spec.event)}\n\n{_fields(spec.event)}"


def _text(cls: type) -> str:
    return inspect.cleandoc(cls.__doc__ or "")


def _fields(cls: type[msgspec.Struct]) -> str:
    hints = get_type_hints(cls)
    rows = ["| field | type | default |\n|---|---|---|\n"]
    for field in msgspec.structs.fields(cls):
        default = "" if field.required else f"`{_default(field)}`"
        rows.append(f"| `{field.name}` | {type_name(hints[field.name])} | {default} |\n")
    return "".join(rows)


def _default(field: Any) -> str:
    if field.default is msgspec.NODEFAULT:
        return msgspec.json.encode(field.default_factory()).decode()
    return msgspec.json.encode(field.default).decode()


def type_name(hint: Any) -> str:
    """Return a type in words that JSON has: `number`, `list of text`, `BlobRef or null`."""
    return " or ".join(dict.fromkeys(_names(hint)))


def _names(hint: Any) -> Iterator[str]:
    origin, arguments = get_origin(hint), get_args(hint)
    simple = {str: "text", int: "integer", float: "number", bool: "true or false", type(None): "null", Any: "anything"}
    if hint in simple:
        yield simple[hint]
    elif origin in (Union, types.UnionType):
        for argument in arguments:
            yield from _names(argument)
    elif origin is list:
        yield f"list of {type_name(arguments[0])}"
    elif origin is tuple:
        yield f"list of {len(arguments)} {type_name(arguments[0])}s"
    elif origin is dict:
        yield f"object of {type_name(arguments[1])}"
    else:
        yield hint.__name__


def _tasks() -> str:
    rows = [
        f"| `{_task_subject(kind)}` | {' or '.join(q.value for q in queuers)} | {taker.value} |\n"
        for kind, (taker, queuers) in TASKS.items()
    ]
    return (
        "\n## Tasks\n\nA task is work, not a fact: exactly one owner does it. Tasks wait in the work-queue stream "
        "`WORK`, at most one a subject,\nso that one cannot be queued twice; an owner that dies loses its task to the "
        "next one. A task has only its job's id:\nits owner reads the rest in that job's log. `<term>` is how often "
        "the job had been resumed, from 0; `<i>` is which of the\njob's replicas, from 0.\n\n"
        "| subject | queued by | taken by |\n|---|---|---|\n" + "".join(rows)
    )


def _task_subject(kind: str) -> str:
    return f"work.{kind}.<pool>.<org>.<job>.<term>" + (".<i>" if kind == "serve" else "")


def _user(service: str) -> str:
    """Return the row of a service in the table of users, from its permissions."""
    subjects = may_publish(service, ("default",))

    def named(prefix: str, end: str = "") -> list[str]:
        return [s.removeprefix(prefix).removesuffix(end) for s in subjects if s.startswith(prefix) and s.endswith(end)]

    facts = [s.removesuffix(".>") for s in subjects if s.removesuffix(".>") in CATALOGUE]
    buckets = sorted({s.split(".")[0] for s in named("$KV.")})
    streams = [s for s in named("$JS.API.DIRECT.GET.", ".>") if s != "EVENTS"]
    queues = sorted({" ".join(s.split(".")[1:2]) for s in named("$JS.ACK.", ".>")})
    tasks = [s.split(".")[0] for s in named("work.", ".>")]
    cells = (facts, tasks, buckets, [s.removeprefix("KV_") for s in streams], queues)
    return f"| {service} | " + " | ".join(", ".join(f"`{each}`" for each in cell) for cell in cells) + " |\n"
