"""The wheel in environments of its own: a plain install is a client, and names the extra that anything else needs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from contracts.pins import constraints
from synth.events.catalogue import SERVICES
from tests.e2e.cli import in_turn
from tests.e2e.cli.looks import Words, every_command
from tests.e2e.platform import JOB_S, Platform, sft
from tests.e2e.task_apps import Served
from tests.unit.cli.openai_account.account import write_export
from tests.unit.cli.test_serve import ONE

pytestmark = pytest.mark.timeout(1200)

_ROOT = Path(__file__).parents[3]
#: Beside the environment with the wheel alone, there is one for each of these extras.
EXTRAS = ("bus", "taskapp", "parquet", "graders")
_ONE = re.compile(rf"{in_turn.BEGIN}\d+\n(.*?){in_turn.END}(\d+)", re.DOTALL)
#: Commands that need an extra, each with arguments that reach what needs it, and that extra.
NEEDY: dict[tuple[str, ...], str] = {
    ("demo",): "demo",
    ("up",): "cluster",
    ("down",): "cluster",
    ("status",): "cluster",
    ("backup", "saved"): "cluster",
    ("restore", "saved"): "cluster",
    ("serve", "one_app.py"): "taskapp",
    ("serve", "--reload", "one_app.py"): "taskapp",
    ("play", "one_app.py"): "taskapp",
    ("eval", "run", "--app-id", "one", "--model", "tiny-qwen3"): "taskapp",
    ("deploy", "run", "one"): "taskapp",
    ("deploy", "run", "one", "--to", "docker"): "taskapp",
    ("deploy", "ls"): "taskapp",
    ("deploy", "stop", "one"): "taskapp",
    ("deploy", "logs", "one"): "taskapp",
    ("models", "make", "tiny-qwen3"): "models",
    ("models", "make", "tiny-qwen3-vl"): "models",
    ("models", "pull", "Qwen/Qwen3-0.6B"): "models",
    ("files", "upload", "rows"): "parquet",
    ("config", "check", "sft.toml", "--dataset", "rows/rows.parquet"): "parquet",
}
#: A grader that needs no package.
_SAME = {
    "type": "string_check",
    "name": "same",
    "operation": "eq",
    "input": "{{sample.output_text}}",
    "reference": "{{item.reference}}",
}
_EVAL = ("eval", "run", "--model", "tiny-qwen3", "--max-tokens", "8")
#: Client commands that are not run here, and why.
NOT_RUN: dict[Words, str] = {
    ("keys", "judge", "add"): "it waits for the key: tests/unit/cli/test_keys.py",
    ("orgs", "create"): "an organisation is there for good: tests/e2e/test_tenancy.py",
}


@dataclass(frozen=True)
class Environment:
    """A folder with a Python that has the wheel."""

    folder: Path

    @property
    def python(self) -> str:
        return str(self.folder / "venv/bin/python")

    @property
    def packages(self) -> Path:
        [folder] = self.folder.glob("venv/lib/python*/site-packages")
        return folder

    def run(self, *commands: Sequence[str]) -> list[tuple[int, str]]:
        """Run `synthctl` with each of these arguments; returns each exit code and all output."""
        file = self.folder / "commands.json"
        file.write_text(json.dumps(commands))
        done = subprocess.run(
            [self.python, "-P", in_turn.__file__, str(file)],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=JOB_S,
            check=False,
        )
        results = [(int(code), text) for text, code in _ONE.findall(done.stdout)]
        assert len(results) == len(commands), done.stdout[-2000:]
        return results

    def json(self, *arguments: str) -> Any:
        """Run one command that must succeed; returns what it prints as JSON."""
        [(code, text)] = self.run((*arguments, "-o", "json"))
        assert code == 0, text
        return json.loads(text[text.index("{") : text.rindex("}") + 1])


def pip(*arguments: str | Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def install(folder: Path, requirement: str, *, below: Environment | None = None) -> Environment:
    """Make a virtual environment with one requirement. below: the environment whose packages it has too."""
    folder.mkdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    environment = Environment(folder)
    if below is not None:
        (environment.packages / "below.pth").write_text(f"{below.packages}\n")
    # A folder has no hash, and pip wants one of everything where it gets one of anything.
    file = folder / "constraints.txt"
    file.write_text(constraints())
    options = ("--no-compile", "--constraint", file)
    pip("--python", folder / "venv", "install", *options, requirement)
    return environment


@pytest.fixture(scope="module")
def environments(platform: Platform, rows: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Environment]:
    """Every environment, by its extra, with the keys and the address of the cluster."""
    home = tmp_path_factory.mktemp("installed")
    pip("wheel", "--no-deps", "--wheel-dir", home, _ROOT)
    [wheel] = home.glob("synthctl-*.whl")
    plain = install(home / "plain", str(wheel))
    with ThreadPoolExecutor() as pool:
        layers = pool.map(lambda extra: install(home / extra, f"synthctl[{extra}]", below=plain), EXTRAS)
        environments = {"": plain, **dict(zip(EXTRAS, layers, strict=True))}
    for environment in environments.values():
        for file in (platform.shell.folder / ".env", rows):
            shutil.copy(file, environment.folder)
        (environment.folder / "one_app.py").write_text(ONE.format(name="one"))
        (environment.folder / "sft.toml").write_text(sft(steps=80))
        (environment.folder / "same.json").write_text(json.dumps(_SAME))
        write_export(environment.folder / "exported")
        (environment.folder / "rows").mkdir()
        (environment.folder / "rows" / "rows.parquet").write_bytes(b"PAR1" + bytes(64) + b"PAR1")
    return environments


def test_a_plain_install_runs_every_command_of_a_client(environments: dict[str, Environment], letters_app: Served):
    plain, url = environments[""], letters_app.url
    job = plain.json("submit", "sft.toml", "--dataset", "math.jsonl", "--detach")["id"]
    seeds = ("--seeds", "0-3", "--max-tokens", "40", "--task-url", url)
    [(watched, text)] = plain.run(["jobs", "watch", job])
    assert watched == 0, text
    model = plain.json("jobs", "get", job)["model"]
    eval_, rows = ("eval", "run", *seeds, "--model"), ("--limit", "2", "--max-tokens", "40")
    first, second = (plain.json(*eval_, id, "--follow")["job"] for id in (model, "tiny-qwen3"))
    key = plain.json("keys", "create")["id"]
    file = plain.json("files", "upload", "math.jsonl")["id"]
    commands: list[tuple[int, Words, Words]] = [
        (0, ("setup",), ("--no-input",)),
        (2, ("logs",), ()),
        (0, ("doctor",), ("--task-url", url)),
        (0, ("submit",), ("sft.toml", "--dataset", file, "--follow")),
        (0, ("chat",), (model, "-m", "What is 1 + 2?", "--max-tokens", "8")),
        (0, ("play",), (url, "--seed", "3", "--model", "tiny-qwen3", "--max-tokens", "8")),
        (0, ("apps", "ls"), ()),
        (0, ("eval", "run"), (*seeds, "--model", model)),
        (0, ("eval", "show"), (first, "--per-seed")),
        (0, ("eval", "compare"), (first, second)),
        (0, ("compare",), ("tiny-qwen3", model, *rows, "--rows", "math.jsonl", "--grader", "same.json")),
        (0, ("distil",), ("--teacher", model, *rows, "--prompts", "math.jsonl", "--i-may-train-on-this")),
        (0, ("jobs", "ls"), ()),
        (0, ("jobs", "get"), (job,)),
        (0, ("jobs", "config"), (job,)),
        (0, ("jobs", "watch"), (job,)),
        (0, ("jobs", "events"), (job,)),
        (0, ("jobs", "metrics"), (job, "--plot")),
        (0, ("jobs", "compare"), (job, first)),
        (0, ("jobs", "checkpoints"), (job,)),
        (1, ("jobs", "pause"), (job,)),
        (1, ("jobs", "resume"), (job,)),
        (1, ("jobs", "cancel"), (job,)),
        (0, ("rollouts", "ls"), (first,)),
        (0, ("rollouts", "show"), (first, "e0_0")),
        (0, ("traces", "ls"), ("--job", first)),
        (0, ("traces", "show"), (f"{first}_e0_0",)),
        (0, ("traces", "export"), ("traces.jsonl", "--job", first)),
        (0, ("filter",), ("--job", first, "--out", "filtered.jsonl")),
        (0, ("files", "ls"), ()),
        (0, ("files", "get"), (file,)),
        (0, ("models", "ls"), ()),
        (0, ("models", "known"), ()),
        (2, ("models", "alias"), ("nobody/knows-it", "tiny-qwen3")),
        (0, ("models", "aliases"), ()),
        (2, ("models", "unalias"), ("nobody/knows-it",)),
        (0, ("models", "download"), (model,)),
        (0, ("config", "init"), ("rl",)),
        (0, ("config", "schema"), ()),
        (0, ("import", "openai"), ("--from", "exported")),
        (0, ("config", "check"), ("sft.toml", "--dataset", "math.jsonl")),
        (0, ("config", "explain"), ("sft.toml", "--dataset", "math.jsonl")),
        (0, ("keys", "ls"), ()),
        (0, ("keys", "rotate"), (key,)),
        (0, ("keys", "revoke"), (key,)),
        (0, ("keys", "judge", "ls"), ()),
        (6, ("keys", "judge", "rm"), ("nope",)),
        (0, ("orgs", "ls"), ()),
        (0, ("audit",), ()),
        (0, ("limits",), ()),
        (0, ("dead", "ls"), ()),
        (6, ("dead", "show"), ("999999",)),
        (6, ("dead", "retry"), ("999999",)),
        (6, ("dead", "drop"), ("999999",)),
        (0, ("jobs", "rm"), (second, "--yes")),
        (0, ("models", "rm"), (model, "--yes")),
        (0, ("files", "rm"), (file, "--yes")),
    ]
    results = plain.run(*([*words, *arguments] for _, words, arguments in commands))
    wrong = [(w, code, text) for (c, w, _), (code, text) in zip(commands, results, strict=True) if code != c]
    assert wrong == []
    assert not [text for _, text in results if "needs: " in text or "a fault of" in text or "Traceback" in text]
    # A command that is new is run here, or needs an extra.
    leaves = {words for words, command in every_command().items() if not hasattr(command, "commands")}
    needy = {words for words in leaves if any(line[: len(words)] == words for line in NEEDY)}
    assert leaves - {words for _, words, _ in commands} - needy - {("files", "upload"), ("keys", "create")} == (
        NOT_RUN.keys()
    )


def test_a_plain_install_has_the_python_client(environments: dict[str, Environment]):
    plain = environments[""]
    (plain.folder / "client.py").write_text(
        "from synth.client import Client\n"
        "with Client() as client:\n"
        "    print(client.files.wait(client.files.upload('math.jsonl').id).status)\n"
    )
    program = [plain.python, "-P", "client.py"]
    done = subprocess.run(program, cwd=plain.folder, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("ready\n", "")


@pytest.mark.parametrize("extra", ["", *EXTRAS])
def test_a_command_without_its_extra_prints_one_line(extra: str, environments: dict[str, Environment]):
    # A service needs what serves a task app, too.
    there = {extra, "taskapp"} if extra == "bus" else {extra}
    lines = {words: needed for words, needed in NEEDY.items() if needed not in there}
    if extra:
        # The environment with the wheel alone ran all of them: here one of each extra that is not there.
        lines = {words: needed for needed, words in {needed: words for words, needed in lines.items()}.items()}
    results = environments[extra].run(*lines)
    for (words, needed), (code, text) in zip(lines.items(), results, strict=True):
        verb = " ".join(max((words[:n] for n in range(4) if words[:n] in every_command()), key=len))
        # Above it is at most what the command has done before.
        line = text.splitlines()[-1]
        assert (code, line) == (2, f'{verb} needs: pip install "synthctl[{needed}]"'), (words, text)
        assert not re.search("error|a fault of", text), text


@pytest.mark.parametrize(
    ("extra", "command", "code", "text"),
    [
        # What each of them makes work.
        ("taskapp", ("play", "one_app.py", "--model", "tiny-qwen3"), 0, "reward"),
        ("taskapp", (*_EVAL, "--app-id", "synth.demo.math.app", "--seeds", "0-1"), 0, "reward_mean"),
        ("taskapp", ("deploy", "ls"), 0, "no task app is deployed here"),
        ("taskapp", ("serve", "no_such_app.py"), 2, "there is no such file"),
        ("parquet", ("files", "upload", "rows"), 2, "not a Parquet file that can be read"),
    ],
)
def test_an_extra_makes_its_commands_work(
    extra: str, command: Words, code: int, text: str, environments: dict[str, Environment]
):
    [(ended, shown)] = environments[extra].run(command)
    assert (ended, text in shown) == (code, True), shown


@pytest.mark.parametrize(
    ("extra", "services"),
    [
        ("", {**{name: name for name in SERVICES}, "bus": "bus"}),
        ("bus", {n: n for n in ("gateway", "rollouts", "trainer")}),
    ],
)
def test_a_service_without_its_extra_prints_one_line(
    extra: str, services: dict[str, str], environments: dict[str, Environment]
):
    for name, needed in services.items():
        words = [name, "check"] if name == "bus" else [name]
        done = synthd(environments[extra], *words)
        assert (done.returncode, done.stderr) == (2, f'{name} needs: pip install "synthctl[{needed}]"\n')


def test_the_bus_extra_prints_the_configuration_of_the_bus(environments: dict[str, Environment]):
    done = synthd(environments["bus"], "bus", "config")
    assert (done.returncode, "jetstream" in done.stdout) == (0, True), done.stderr


def synthd(environment: Environment, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = [environment.python, "-P", "-m", "synth.synthd", *arguments]
    return subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)


def test_the_graders_extra_compares_texts(environments: dict[str, Environment]):
    code = "from synth.graders.similarity import similarity; print(similarity('fuzzy_match', 'a cat', 'a cat'))"
    program = [environments["graders"].python, "-P", "-c", code]
    assert float(subprocess.run(program, capture_output=True, text=True, check=True).stdout) == 1.0
