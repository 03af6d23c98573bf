"""What is installed is pinned, each file by its hash, and the pins are what `pyproject.toml` asks for."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from contracts.pins import FILES, ROOT, constraints, read_hashes, read_pins, write_hashes

MAKEFILE = (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("name", FILES)
def test_every_pin_has_hashes(name: str):
    hashes, pins = read_hashes(ROOT / name), read_pins(ROOT / name)
    assert set(hashes) == {f"{package}=={version}" for package, version in pins.items()}
    assert [pin for pin, found in hashes.items() if not found] == []
    # No index is named: whoever installs has pip's configuration.
    assert "://" not in (ROOT / name).read_text()


def test_what_make_install_installs_is_pinned_within_what_pyproject_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    asked = [*project["dependencies"], *(line for name in extras if "vllm" not in name for line in extras[name])]
    pins = {canonicalize_name(name): version for name, _, version in (p.partition("==") for p in constraints().split())}
    for requirement in (Requirement(line) for line in asked if not line.startswith("synthctl")):
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), str(requirement)


def test_both_builds_of_torch_are_one_version():
    builds = [read_pins(ROOT / "deploy" / name)["torch"] for name in ("torch.txt", "torch-cpu.txt")]
    assert builds == [builds[0], f"{builds[0]}+cpu"]
    assert "torch" not in read_pins(ROOT / "constraints.txt"), "it would be installed twice"
    cuda = read_pins(ROOT / "deploy/vllm-cuda.txt")
    assert read_pins(ROOT / "deploy/torch.txt").items() <= cuda.items()


def test_nothing_is_installed_from_an_index_without_its_hash():
    """Of the Makefile and the Dockerfile: `pip install` of pins, or of our own folder without its dependencies."""
    commands = [line for line in MAKEFILE.splitlines() if "pip install" in line]
    assert commands
    for line in commands:
        assert re.search(r"pip install \$\((PINNED|OURS)\)", line), line
    assert re.search(r"^PINNED := .*--require-hashes", MAKEFILE, re.MULTILINE)
    assert re.search(r"^OURS := .*--no-deps --no-build-isolation", MAKEFILE, re.MULTILINE)
    for line in (ROOT / "deploy/Dockerfile").read_text().splitlines():
        if found := re.search(r"pip (?:install|download) .*", line):
            assert re.search("--require-hashes|--no-index|--no-deps --no-build-isolation", found[0]), line


def test_pip_refuses_a_file_whose_hash_is_none_of_the_pins(tmp_path: Path):
    """A wheel that is made here stands in for one of the index."""
    with zipfile.ZipFile(tmp_path / "pinned-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("pinned-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: pinned\nVersion: 1.0\n")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    pins = tmp_path / "pins.txt"
    pins.write_text(f"pinned==1.0 \\\n    --hash=sha256:{'0' * 64}\n")
    options = ["--no-index", "--find-links", str(tmp_path), "--no-deps", "--require-hashes"]
    command = [*pip, "install", *options, "--target", str(tmp_path / "target"), "--requirement", str(pins)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr


def test_writing_the_pins_keeps_comments_markers_and_earlier_hashes(tmp_path: Path):
    """A stand-in for uv lists one hash for each pin; it is no registry that is tested here."""
    uv = tmp_path / "uv"
    uv.write_text(
        f"#!{sys.executable}\nimport sys\npins = open(sys.argv[-3]).read().split()\n"
        "text = ''.join(f'{p.lower()} \\\\\\n    --hash=sha256:{\"a\" * 64}\\n' for p in pins)\n"
        "open(sys.argv[-1], 'w').write(text)\n"
    )
    uv.chmod(0o755)
    file = tmp_path / "pins.txt"
    file.write_text(
        f'# Why.\nPyYAML==6.0.3 ; sys_platform == "linux" \\\n    --hash=sha256:{"b" * 64}\nnew==2.0\n',
    )
    write_hashes(file, uv)
    once = file.read_text()
    assert once == (
        f'# Why.\nPyYAML==6.0.3 ; sys_platform == "linux" \\\n    --hash=sha256:{"a" * 64} \\\n'
        f"    --hash=sha256:{'b' * 64}\nnew==2.0 \\\n    --hash=sha256:{'a' * 64}\n"
    )
    write_hashes(file, uv)
    assert file.read_text() == once
