"""A wrong setting ends a service with one line that names it, and that contains no value of any setting."""

from __future__ import annotations

import importlib
import json
import traceback
from collections.abc import Iterator, Set

import pytest
from pydantic_settings import BaseSettings

from synth.bus_admin import BusSettings
from synth.errors import UserError
from synth.events.catalogue import SERVICES
from synth.runtime.environment.setting_names import NAMES
from synth.settings import Settings
from synth.synthd import main

#: In no name of a setting, and in no text of an error.
SECRET = "xq7-hunter2"

#: A secret where a setting expects something else: as it is, as a URL's password, and within JSON of each shape.
MISPLACED = [
    SECRET,
    f"http://user:{SECRET}@proxy.example:port",
    json.dumps(SECRET),
    json.dumps([SECRET]),
    json.dumps({"a": SECRET}),
    json.dumps({"a": [SECRET]}),
    json.dumps({"a": {"base_url": SECRET, "api_keey": SECRET, "streams": SECRET}}),
    f'{{"a": "{SECRET}"',
]


def settings_classes() -> Iterator[type[BaseSettings]]:
    for service in SERVICES:
        importlib.import_module(f"synth.{service}.settings")
    waiting: list[type[BaseSettings]] = [BaseSettings]
    seen: set[type[BaseSettings]] = set()
    while waiting:
        for kind in waiting.pop().__subclasses__():
            if kind.__module__.startswith("synth.") and kind not in seen:
                seen.add(kind)
                waiting.append(kind)
                yield kind


CLASSES = sorted(set(settings_classes()) - {Settings}, key=lambda kind: kind.__name__)


def test_every_settings_class_is_of_the_one_base():
    """Together they have every name of a setting."""
    assert BusSettings in CLASSES
    assert [kind for kind in CLASSES if not issubclass(kind, Settings)] == []
    assert {f"SYNTH_{name}".upper() for kind in CLASSES for name in kind.model_fields} >= NAMES


@pytest.mark.parametrize("kind", CLASSES)
def test_no_error_of_a_setting_prints_its_value(kind: type[Settings], monkeypatch: pytest.MonkeyPatch):
    for value in MISPLACED:
        names = kind.__annotations__.keys() & kind.model_fields.keys()
        # One error names every setting whose own value is wrong. The others are then wrong alone, or not at all.
        while refused := _refused(kind, names, value, monkeypatch):
            names -= refused
        for name in names:
            _refused(kind, {name}, value, monkeypatch)


def _refused(kind: type[Settings], names: Set[str], value: str, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Give these settings a value, and check the error. Returns the settings that it names."""
    with monkeypatch.context() as patch:
        for name in names:
            patch.setenv(f"SYNTH_{name.upper()}", value)
        error = _error_of(kind)
    if error is None:
        return set()
    assert SECRET not in "".join(traceback.format_exception(error)), names
    places = {problem.where.partition(".")[0] for problem in error.problems}
    assert all(place.startswith("SYNTH_") or place == "settings" for place in places), names
    assert str(error).startswith(("SYNTH_", "settings: SYNTH_")), names
    return {name for name in names if f"SYNTH_{name.upper()}" in places}


def _error_of(kind: type[Settings]) -> UserError | None:
    try:
        kind()
    except UserError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("variable", "value", "line"),
    [
        (
            "SYNTH_JUDGE_PROVIDERS",
            '{"openai": {"base_url": "https://api.example/v1", "api_keey": "sk-1"}}',
            "error: SYNTH_JUDGE_PROVIDERS.openai: unknown key 'api_keey'; expected one of api_key, base_url, "
            "max_concurrency, models, price_per_million_completion_tokens, price_per_million_prompt_tokens, "
            "requests_per_second; did you mean 'api_key'?\n",
        ),
        (
            "SYNTH_JUDGE_PROVIDERS",
            '{"openai": "sk-1"}',
            "error: SYNTH_JUDGE_PROVIDERS.openai: the value cannot be used; expected a JSON object\n",
        ),
        (
            "SYNTH_PORT",
            "many",
            "error: SYNTH_PORT: the value cannot be used; expected a valid integer, unable to parse string as an "
            "integer\n",
        ),
    ],
)
def test_a_wrong_setting_is_one_line(
    variable: str, value: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv(variable, value)
    with pytest.raises(SystemExit) as ended:
        main(["judge"])
    assert ended.value.code == 1
    assert capsys.readouterr().err == line


def test_a_wrong_setting_of_the_bus_commands_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("SYNTH_BUS_REPLICAS", "7")
    with pytest.raises(SystemExit) as ended:
        main(["bus", "check"])
    assert ended.value.code == 1
    assert capsys.readouterr().err == (
        "error: SYNTH_BUS_REPLICAS: the value cannot be used; expected less than or equal to 5\n"
    )
