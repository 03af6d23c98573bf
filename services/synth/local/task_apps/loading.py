"""Finds a task app in the user's code, and imports it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from synth.console.errors import UsageProblem
from synth.local.task_apps.discovery import Maker, choose_app, find_apps, no_such_app
from synth.taskapp.faults import fault_of
from synth.taskapp.sdk import TaskApp

_EXPECTED = "a task app: its id, a file (app.py), a module (pkg.app), or one of their names (app.py:math)"


def locate(named: str) -> str:
    """`app.py`, `pkg.app`, or either with `:name`, of the app that is named so or by its id.

    An id is looked for in the files of the working directory and below. Raises `UsageProblem`.
    """
    source = named.partition(":")[0]
    if source.endswith(".py") and not Path(source).is_file():
        raise UsageProblem("there is no such file", expected=_EXPECTED, where=source)
    if source != named or source.endswith(".py") or _is_module_here(source):
        return named
    folder = Path()
    listing = find_apps(folder)
    app = choose_app(named, listing)
    if app is None:
        if "." in named or _is_module(named):
            return named
        raise no_such_app(named, listing, folder)
    if app.kind is Maker.CLIENT:
        fix = f"serve it with `synth-ai task-app serve {app.id}`, and use its address as the task app's URL"
        raise UsageProblem(f"{named!r} is an app of the synth-ai SDK", expected=_EXPECTED, fix=fix, where=app.place)
    if app.kind is Maker.MODAL:
        fix = f"serve it with `modal serve {app.file}`, and use its address as the task app's URL"
        raise UsageProblem(f"{named!r} is an app of Modal's", expected=_EXPECTED, fix=fix, where=app.place)
    return f"{app.file}:{app.variable}" if app.variable else str(app.file)


def load_task_app(named: str) -> TaskApp:
    """Import the app of a name that `locate` takes or returns. Raises `UsageProblem` with the place of the problem."""
    named = locate(named)
    source, _, name = named.partition(":")
    module = _from_file(Path(source)) if source.endswith(".py") else _from_module(source)
    if name:
        value = getattr(module, name, None)
        if isinstance(value, TaskApp):
            return value
        what = f"{source} has no {name}" if value is None else f"{name} is a {type(value).__name__}"
        raise UsageProblem(what, expected=f"a TaskApp{_offer(module)}", where=named)
    apps = _apps_of(module)
    if len({id(app) for app in apps.values()}) != 1:
        what = f"{source} has {len(apps)} task apps" if apps else f"{source} has no task app"
        fix = f"choose one: {source}:{next(iter(apps))}" if apps else ""
        raise UsageProblem(what, expected=_EXPECTED, fix=fix, where=named)
    return next(iter(apps.values()))


def _from_file(path: Path) -> ModuleType:
    # Its neighbours can be imported, as when Python runs the file.
    sys.path.insert(0, str(path.resolve().parent))
    if package := _package_of(path):
        root, name = package
        sys.path.insert(0, str(root))
        try:
            return importlib.import_module(name)
        except Exception as error:
            raise _broken(str(path), error) from error
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise _broken(str(path), error) from error
    return module


def _package_of(path: Path) -> tuple[Path, str] | None:
    """Return the parent folder of the file's outermost package, and the module's full name; None outside a package."""
    names, folder = [path.stem], path.resolve().parent
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        names.insert(0, folder.name)
        folder = folder.parent
    return (folder, ".".join(names)) if len(names) > 1 and path.stem.isidentifier() else None


def _is_module_here(name: str) -> bool:
    """Return whether the working directory has a module of this dotted name."""
    parts = name.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        return False
    return Path(*parts).with_suffix(".py").is_file() or Path(*parts, "__init__.py").is_file()


def _is_module(name: str) -> bool:
    """Return whether Python would find a module of this name, here or among the installed ones."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError, TypeError):
        return False
    finally:
        sys.path.pop(0)


def _from_module(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _broken(name, error) from error
        raise UsageProblem(f"there is no module {error.name!r}", expected=_EXPECTED, where=name) from error
    except (ValueError, TypeError) as error:
        raise UsageProblem(f"{name!r} is not the name of a module", expected=_EXPECTED, where=name) from error
    except Exception as error:
        raise _broken(name, error) from error


def _broken(source: str, error: Exception) -> UsageProblem:
    """Return the problem for an exception of the user's code, with its own line."""
    fault = fault_of(error)
    return UsageProblem(
        f"importing it raised {fault.what}",
        expected="a module that can be imported",
        fix=fault.frames[-1].source if fault.frames else "",
        where=fault.place or source,
    )


def _apps_of(module: ModuleType) -> dict[str, TaskApp]:
    return {name: value for name, value in vars(module).items() if isinstance(value, TaskApp)}


def _offer(module: ModuleType) -> str:
    apps = _apps_of(module)
    return f", such as {next(iter(apps))}" if apps else ""
