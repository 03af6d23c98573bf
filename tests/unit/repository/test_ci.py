"""What is run for everybody is what a person runs: the workflow, `.ci/run`, the hooks and the Makefile agree."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
WORKFLOW = ROOT / ".github/workflows/ci.yml"
MAKEFILE = (ROOT / "Makefile").read_text()


def prerequisites(target: str) -> list[str]:
    rule = re.search(rf"^{re.escape(target)}:([^#\n]*)", MAKEFILE, re.MULTILINE)
    assert rule, f"no make target {target}"
    return rule[1].split()


def workflow_targets() -> set[str]:
    (job,) = yaml.safe_load(WORKFLOW.read_text())["jobs"].values()
    assert job["steps"][-1] == {"run": "make ${{ matrix.target }}"}
    return {row["target"] for row in job["strategy"]["matrix"]["include"]}


def test_the_workflow_is_one():
    checker = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    done = subprocess.run([*checker, str(WORKFLOW)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_workflow_runs_what_the_ci_script_runs():
    lines = re.findall(r"^(?:beside )?make (.+)$", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    called = [word for line in lines for word in line.split() if word[0] != "-"]
    recipe = MAKEFILE.split("\ntest:")[1].split("\n\n")[0]
    tested = [word for line in re.findall(r"\$\(MAKE\) (.+)", recipe) for word in line.split() if word[0] != "-"]
    assert tested == ["lint", "unit", "service"]
    assert workflow_targets() == set(called) - {"test"} | set(tested)
    for target in workflow_targets():
        prerequisites(target)


def test_the_hooks_run_the_tools_of_lint():
    config: dict[str, Any] = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    (repository,) = config["repos"]
    recipe = MAKEFILE.split("\nlint:")[1].split("\n\n")[0].replace("$(BIN)", ".venv/bin")
    linted = set(re.findall(r"\.venv/bin/(\S+(?: -m \S+| check| format)?)", recipe))
    hooked = {
        re.search(r"\.venv/bin/(\S+(?: -m \S+| check| format)?)", hook["entry"])[1]  # type: ignore[index]
        for hook in repository["hooks"]
    }
    assert repository["repo"] == "local"
    assert hooked == linted
