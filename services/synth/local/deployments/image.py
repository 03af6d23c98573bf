"""Writes the folder that a task app's container image is built from: Dockerfile, modules, requirements.

The folder has the user's own modules that the app imports, and the files that are named beside; never a `.env` or
another hidden file. The environment key is given to the container when it runs, and is in no layer.
"""

from __future__ import annotations

import ast
import importlib.metadata
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from synth.console.errors import CliError, UsageProblem
from synth.runtime.lines import split_lines
from synth.taskapp.faults import is_own

#: The programs that build images; the first that answers is used.
ENGINES = ("docker", "podman")
_SDK_PARTS = ("pyproject.toml", "README.md", "LICENSE", "shared", "services/synth")
_LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "*.pyc", "node_modules")
_IGNORED = (".*", "**/.*", "**/__pycache__", "**/*.pyc", "**/*.pem", "**/*.key")
_LOADS = (
    "import sys; from synth.local.task_apps.loading import load_task_app; "
    "sys.path[:] = [p for p in sys.path if p]; load_task_app(sys.argv[1]).asgi()"
)
_HEALTH = (
    "import os, urllib.request as u; "
    "key = os.environ['ENVIRONMENT_API_KEY'].split(',')[0]; "
    "url = 'http://127.0.0.1:' + os.environ.get('PORT', '8001') + '/health'; "
    "u.build_opener(u.ProxyHandler({})).open(u.Request(url, headers={'X-API-Key': key}), timeout=5)"
)


@dataclass(frozen=True)
class ImageFolder:
    """The content of an image. files: of the app, relative to the folder `app` in it. requirements: as pip reads.

    place: the app as it is named from the folder `app`. with_sdk: whether this SDK lies beside it, in `sdk`.
    """

    folder: Path
    files: list[str]
    requirements: list[str]
    place: str
    with_sdk: bool


def write_image(
    folder: Path, place: str, *, include: Sequence[Path], requirements: Path | None, base: str
) -> ImageFolder:
    """Replace the folder with the app and a Dockerfile. base: the image to begin with. Otherwise as `write_folder`."""
    written = write_folder(folder, place, include=include, requirements=requirements)
    (folder / ".dockerignore").write_text("".join(f"{line}\n" for line in _IGNORED))
    (folder / "Dockerfile").write_text(_dockerfile(written.place, base=base, with_sdk=written.with_sdk))
    return written


def write_folder(folder: Path, place: str, *, include: Sequence[Path], requirements: Path | None) -> ImageFolder:
    """Replace the folder with the app that was loaded from `place`, a result of `locate`.

    include: files and folders beside the app's modules. requirements: None for the packages that its modules import, in
    their installed releases. Raises `UsageProblem`, and `CliError` if the app does not load from the folder alone.
    """
    source, _, name = place.partition(":")
    root = Path.cwd()
    own = _own_files(root)
    shutil.rmtree(folder, ignore_errors=True)
    for file in own:
        _copy(root / file, folder / "app" / file)
    for path in include:
        _copy_included(root, path, folder / "app")
    requires = _read_requirements(requirements) if requirements else _imported(root, own)
    sdk = _sdk_source()
    if sdk is None:
        requires = [f"synthctl[taskapp]=={importlib.metadata.version('synthctl')}", *requires]
    else:
        for part in _SDK_PARTS:
            _copy(sdk / part, folder / "sdk" / part)
    (folder / "requirements.txt").write_text("".join(f"{line}\n" for line in requires))
    inside = _inside(source) + (f":{name}" if name else "")
    _check_loads(folder / "app", inside)
    files = sorted(str(file.relative_to(folder / "app")) for file in (folder / "app").rglob("*") if file.is_file())
    return ImageFolder(folder, files, requires, inside, sdk is not None)


def find_engine() -> str | None:
    """Return the first engine that is here and answers."""
    for name in ENGINES:
        if (path := shutil.which(name)) and subprocess.run(
            [path, "info"], capture_output=True, check=False
        ).returncode == 0:
            return path
    return None


def build(engine: str, folder: Path, tag: str) -> None:
    """Build the image; the engine's output goes to stderr. Raises `CliError` if it fails."""
    command = [engine, "build", "--tag", tag, str(folder)]
    run = subprocess.run(command, stdout=sys.stderr, stdin=subprocess.DEVNULL, check=False)
    if run.returncode != 0:
        raise CliError(
            f"the build failed (exit code {run.returncode})", fix="its last lines say why", where=shlex.join(command)
        )


def _dockerfile(place: str, *, base: str, with_sdk: bool) -> str:
    serve = f'exec synthctl serve {shlex.quote(place)} --host "${{HOST:-0.0.0.0}}" --port "${{PORT:-8001}}"'
    needs = "set ENVIRONMENT_API_KEY when the container is run: -e ENVIRONMENT_API_KEY"
    command = f"if [ -z \"$ENVIRONMENT_API_KEY\" ]; then echo '{needs}' >&2; exit 2; fi; {serve}"
    sdk = ["COPY sdk sdk", 'RUN pip install "./sdk[taskapp]" && rm -r sdk'] if with_sdk else []
    lines = [
        f"FROM {base}",
        "ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1",
        "RUN useradd --create-home --uid 1000 app",
        "WORKDIR /app",
        *sdk,
        "COPY requirements.txt ./",
        "RUN pip install --requirement requirements.txt",
        "COPY app ./",
        "USER app",
        "EXPOSE 8001",
        f"HEALTHCHECK --interval=10s --timeout=6s --start-period=60s CMD {json.dumps(['python', '-c', _HEALTH])}",
        "# The shell is replaced, so that SIGTERM reaches the app. The key is given when the container runs.",
        f"CMD {json.dumps(['sh', '-c', command])}",
    ]
    return "\n".join(lines) + "\n"


def _own_files(root: Path) -> list[Path]:
    """Return the user's imported modules, relative to the working directory. Raises `UsageProblem` for others."""
    files: set[Path] = set()
    for name, module in [*sys.modules.items()]:
        # A checkout contains this program's own modules too.
        if name.partition(".")[0] in ("synth", "__main__", "__mp_main__"):
            continue
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not is_own(file) or not file.endswith(".py"):
            continue
        path = Path(file).resolve()
        if not path.is_relative_to(root):
            fix = "deploy from the folder that all of its modules lie below"
            raise UsageProblem(f"the app imports {path}, which is outside of {root}", fix=fix, where=str(path))
        files.add(path.relative_to(root))
        files.update(
            (folder / "__init__.py").relative_to(root)
            for folder in path.parents
            if folder.is_relative_to(root) and (folder / "__init__.py").is_file()
        )
    return sorted(files)


def _inside(source: str) -> str:
    """Return the app's file as it is named in the image; a module stays a module."""
    path = Path(source)
    return str(path.resolve().relative_to(Path.cwd())) if source.endswith(".py") else source


def _imported(root: Path, own: Sequence[Path]) -> list[str]:
    """Return the installed releases of the packages that the modules import."""
    names: set[str] = set()
    for file in own:
        for node in ast.walk(ast.parse((root / file).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.partition(".")[0])
    providers = importlib.metadata.packages_distributions()
    packages = {name for imported in names for name in providers.get(imported, ())} - {"synthctl"}
    return sorted(f"{name}=={importlib.metadata.version(name)}" for name in packages)


def _read_requirements(file: Path) -> list[str]:
    try:
        return split_lines(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageProblem(
            f"cannot be read ({error.strerror})", expected="a file as pip reads", where=str(file)
        ) from error


def _sdk_source() -> Path | None:
    """Return the checkout that this program is installed from; None if it came from a package index."""
    record = importlib.metadata.distribution("synthctl").read_text("direct_url.json")
    url = urlsplit(json.loads(record)["url"]) if record else None
    folder = Path(unquote(url.path)) if url is not None and url.scheme == "file" else None
    return folder if folder is not None and (folder / "pyproject.toml").is_file() else None


def _copy_included(root: Path, path: Path, target: Path) -> None:
    real = path.resolve()
    if not real.exists():
        raise UsageProblem("there is no such file or folder", where=f"--include {path}")
    if not real.is_relative_to(root):
        raise UsageProblem(f"it is outside of {root}", expected="a path below this folder", where=f"--include {path}")
    inside = real.relative_to(root)
    if any(part.startswith(".") for part in inside.parts) or real == root:
        expected = "a file or folder that is not hidden, and not the whole of this one: keys may lie in it"
        raise UsageProblem("it is not put into an image", expected=expected, where=f"--include {path}")
    _copy(real, target / inside)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=_LEFT_OUT, dirs_exist_ok=True)
    else:
        shutil.copyfile(source, target)


def _check_loads(app: Path, place: str) -> None:
    """Import the app from the folder alone, as the container will. Raises `CliError` with the app's exception."""
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    run = subprocess.run(
        [sys.executable, "-P", "-c", _LOADS, place], cwd=app, env=env, capture_output=True, text=True, check=False
    )
    if run.returncode != 0:
        last = (split_lines(run.stderr.strip()) or ["it says nothing"])[-1]
        fix = "add the files that it reads: --include PATH"
        raise CliError(f"the app does not load from what would be in the image: {last}", fix=fix, where=str(app))
