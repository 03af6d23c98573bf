"""docs/configs.md and docs/settings.md: every key of a job file, every setting of a service, from their own texts."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, PlainValidator, SecretStr
from pydantic.fields import FieldInfo

from synth.bus_admin import BusSettings
from synth.events.catalogue import SERVICES
from synth.jobs.parse.unsupported import UNSUPPORTED
from synth.jobs.schema.eval import EvalConfig
from synth.jobs.schema.filter import FilterConfig
from synth.jobs.schema.rl import RlConfig
from synth.jobs.schema.sections import description_of, keys_of
from synth.jobs.schema.sft import SftConfig
from synth.outbound.http_guard import GuardSettings
from synth.runtime.settings import ServiceSettings
from synth.tables.docstrings import attribute_docstrings
from synth.tables.keys import LARGEST, LARGEST_FLOAT

_CONFIGS_HEAD = """\
# Job files

A job is one TOML file. Its kind is read from `[algorithm] type` (`"online"` is RL, `"offline"` is SFT), else from the
sections that it has; a file with `[eval]`, or with the same keys at the top, is an evaluation. Flags of `synthctl
submit` take the place of keys.

```sh
synthctl config init rl --to rl.toml     # a commented file to start from: rl, sft, dpo or eval
synthctl config check rl.toml --model tiny-qwen3     # every problem at once, each with its file, line and key; exit 2
synthctl config explain rl.toml --model tiny-qwen3   # every setting, its origin, its changes and their reasons
```

`init --model` fits the values to the size of a model; without it, the file names a base that the cluster has, or
Qwen3-0.6B if no cluster answers. All three work without a cluster. `check` reads the
datasets line by line; the cluster checks the models and uploaded files that the file names. If no cluster answers,
warnings name the values that were not checked.

An editor with a TOML language server (taplo, Even Better TOML) completes and checks the keys of a file whose first line
is `#:schema` and the path or address of [config.schema.json](config.schema.json); `synthctl config schema` prints it.

An unknown key is an error that names the nearest known one. In the JSON that the published client sends, where keys are
not the user's to mend, only a misspelt key is an error, and any other unknown one a warning. `synthctl jobs get JOB -o
json` shows a submitted job with every default applied (`resolved`), and where each value came from (`origins`).

Files that run as they are: [configs/demo](../configs/demo). The published client's own examples, with their results:
[client-examples.md](client-examples.md). This page is generated from the schemas (`make contracts`).

Keys marked ○ are read and checked and have no effect: a file in which one requests something gets a warning with the
reason.
"""
_SETTINGS_HEAD = """\
# Settings

Every service is configured by environment variables. `synthctl up` sets them for the cluster on one machine,
`docker-compose.yml` for containers. This page is generated from the settings classes (`make contracts`).
"""
_KINDS: tuple[tuple[str, str, type[BaseModel]], ...] = (
    ("rl", "RL", RlConfig),
    ("sft", "SFT", SftConfig),
    ("eval", "Evaluation", EvalConfig),
    ("filter", "Filter", FilterConfig),
)
#: Bounds that every number has.
_NO_BOUNDS = (LARGEST, LARGEST_FLOAT, 2**63)
_NOTES = {
    "filter": (
        "\nA filter turns traces into rows to train on: `synthctl filter FILE` ([traces.md](traces.md)). It is no job\n"
        "of the cluster, and submitting one is refused.\n"
    )
}


def configs_page() -> str:
    """Return the page of job files as Markdown."""
    parts = [_CONFIGS_HEAD]
    for kind, title, config in _KINDS:
        parts.append(f"\n## {title}\n{_NOTES.get(kind, '')}")
        for path, section in _sections(config, ()):
            rows = "".join(_key_rows(section, path, kind))
            table = f"\n| key | type | default | |\n|---|---|---|---|\n{rows}" if rows else ""
            if table or section.model_config.get("extra") == "allow":
                heading = f"`[{'.'.join(path)}]`" if path else "beside the sections"
                purpose = _purpose(section) if path else "Keys and free tables at the top of the file."
                parts.append(f"\n### {title}: {heading}\n\n{purpose}\n{table}")
    return "".join(parts)


def _sections(model: type[BaseModel], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], type[BaseModel]]]:
    yield path, model
    # Required keys come first.
    for name, field in sorted(keys_of(model).items(), key=lambda item: not item[1].is_required()):
        nested = _nested(field.annotation)
        if nested is not None:
            yield from _sections(nested, (*path, name))


def _nested(annotation: Any) -> type[BaseModel] | None:
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def _purpose(section: type[BaseModel]) -> str:
    doc = inspect.cleandoc(section.__doc__ or "")
    _, _, text = doc.partition(": ")
    return text[:1].upper() + text[1:] if text else doc


def _key_rows(section: type[BaseModel], path: tuple[str, ...], kind: str) -> Iterator[str]:
    for name, field in keys_of(section).items():
        if _nested(field.annotation) is not None:
            continue
        dotted = ".".join((*path, name))
        unsupported = any(dotted == key or dotted.startswith(f"{key}.") for key in UNSUPPORTED[kind])
        mark = " ○" if unsupported else ""
        text = _cell(description_of(section, name) or "")
        yield f"| `{name}`{mark} | {_type(field)} | {_default(field)} | {text} |\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _type(field: FieldInfo) -> str:
    if any(isinstance(m, PlainValidator) for m in field.metadata):
        return "seeds"
    words = list(dict.fromkeys(_words(field.annotation)))
    bounds = [
        f"{sign} {getattr(m, name):g}"
        for m in field.metadata
        for name, sign in (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤"))
        if hasattr(m, name) and getattr(m, name) not in _NO_BOUNDS
    ]
    return ", ".join([" or ".join(words), *bounds])


def _words(annotation: Any) -> Iterator[str]:
    origin, arguments = get_origin(annotation), get_args(annotation)
    simple = {str: "text", int: "integer", float: "number", bool: "true or false", Any: "anything"}
    if annotation is type(None):
        return
    if annotation in simple:
        yield simple[annotation]
    elif origin is Annotated:
        if any(isinstance(m, PlainValidator) for m in arguments[1:]):
            yield "seeds"
        else:
            yield from _words(arguments[0])
    elif origin in (Union, types.UnionType):
        for argument in arguments:
            yield from _words(argument)
    elif origin is Literal:
        yield from (f"`{json.dumps(value)}`" for value in arguments)
    elif origin in (list, tuple):
        yield f"list of {' or '.join(_words(arguments[0]))}".replace("list of table", "list of tables")
    elif origin is dict or (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        yield "table"
    else:
        yield str(annotation)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    return "" if field.default is None else f"`{json.dumps(field.default)}`"


def settings_page() -> str:
    """Return the page of settings as Markdown."""
    parts = [_SETTINGS_HEAD, "\n## Every service\n\n", _settings_table(ServiceSettings, set())]
    shared = set(ServiceSettings.model_fields)
    parts.append("\n## Services that call what users name: `verifier`, `rollouts`, `judge`\n\n")
    parts.append(_settings_table(GuardSettings, set()))
    shared |= set(GuardSettings.model_fields)
    for service in SERVICES:
        own = _settings_class(service)
        table = _settings_table(own, shared)
        if table:
            parts.append(f"\n## `synthd {service}`\n\n{table}")
    parts.append(f"\n## `synthd bus init`\n\n{_settings_table(BusSettings, shared)}")
    return "".join(parts)


def setting_names() -> str:
    """Return the module of every setting's name."""
    names = sorted(set(re.findall(r"^\| `(SYNTH_[A-Z0-9_]+)`", settings_page(), re.MULTILINE)))
    lines = "".join(f'        "{name}",\n' for name in names)
    title = "The names of every service's settings; `make contracts` writes this file."
    return f'"""{title}"""\n\nNAMES = frozenset(\n    {{\n{lines}    }}\n)\n'


def _settings_class(service: str) -> type[BaseModel]:
    try:
        module = importlib.import_module(f"synth.{service}.settings")
    except ModuleNotFoundError:
        return ServiceSettings
    name = f"{service.capitalize()}Settings"
    return getattr(module, name)


def _settings_table(model: type[BaseModel], without: set[str]) -> str:
    texts: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        if cls.__module__.startswith("synth."):
            texts |= attribute_docstrings(cls)
    rows = [
        f"| `SYNTH_{name.upper()}` | {_setting_default(field)} | {_cell(texts.get(name, ''))} |\n"
        for name, field in model.model_fields.items()
        if name not in without
    ]
    return "| variable | default | |\n|---|---|---|\n" + "".join(rows) if rows else ""


def _setting_default(field: FieldInfo) -> str:
    if field.default_factory is not None:
        made: object = field.default_factory()  # type: ignore[call-arg]
        return "the host's name" if made else ""
    value = field.default
    if value is None or value == () or (isinstance(value, SecretStr) and not value.get_secret_value()):
        return ""
    return f"`{json.dumps(value) if isinstance(value, bool) else value}`"
