"""Writes the hashes of every pinned Python package: `python -m contracts.pins UV` (`make pins`).

To pin another version, edit its line `name==version` in one of `FILES`, and run it. uv lists the hashes of all files
of the version in the package index, for every platform. A local version, as torch's build for CPUs has, is not
on the public index: it gets the hash of the file that pip takes on this machine, beside its earlier hashes.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = (
    "constraints.txt",
    "deploy/site.txt",
    "deploy/torch-cpu.txt",
    "deploy/torch.txt",
    "deploy/uv.txt",
    "deploy/vllm-cpu.txt",
    "deploy/vllm-cuda.txt",
    *(
        f"tests/clients/requirements/{file.name}"
        for file in sorted((ROOT / "tests/clients/requirements").glob("*.txt"))
    ),
)
_PIN = re.compile(r"^([\w.-]+)==([^\s\\;]+)( ;[^\\\n]*[^\s\\])?", re.MULTILINE)
_HASH = re.compile(r"--hash=(sha256:[0-9a-f]{64})")


def read_pins(file: Path) -> dict[str, str]:
    """Return the versions that a file pins, by the packages' names as it writes them."""
    return {name: version for name, version, _ in _PIN.findall(file.read_text())}


def read_hashes(file: Path) -> dict[str, set[str]]:
    """Return the hashes of each pin, by `name==version`."""
    entries = re.split(r"\n(?=\S)", file.read_text())
    return {f"{found[1]}=={found[2]}": set(_HASH.findall(entry)) for entry in entries if (found := _PIN.match(entry))}


def constraints() -> str:
    """Return every version that `make install` installs, for `pip install --constraint`: without a hash."""
    pins = read_pins(ROOT / "constraints.txt") | {"torch": read_pins(ROOT / "deploy/torch.txt")["torch"]}
    return "".join(f"{name}=={version}\n" for name, version in pins.items())


def write_hashes(file: Path, uv: Path) -> None:
    """Rewrite a file: its comment, its pins, and the index's hashes of each pin, beside the earlier ones.

    Raises `CalledProcessError` for a pin that the index lacks.
    """
    before, pins = read_hashes(file), _PIN.findall(file.read_text())
    comment = "".join(f"{line}\n" for line in file.read_text().splitlines() if line.startswith("#"))
    public = [f"{name}=={version}" for name, version, _ in pins if "+" not in version]
    known = _hashes_of_index(public, uv) if public else {}
    text = ""
    for name, version, marker in pins:
        pin = f"{name}=={version}"
        hashes = before[pin] | (known[_normalised(pin)] if "+" not in version else _hashes_of_pip(pin))
        text += " \\\n    --hash=".join([pin + marker, *sorted(hashes)]) + "\n"
    file.write_text(comment + text)


def _hashes_of_index(pins: list[str], uv: Path) -> dict[str, set[str]]:
    with tempfile.TemporaryDirectory() as folder:
        plain, hashed = Path(folder) / "pins.txt", Path(folder) / "hashed.txt"
        plain.write_text("\n".join(pins))
        command = [uv, "pip", "compile", "--quiet", "--native-tls", "--no-deps", "--generate-hashes", *_index()]
        subprocess.run([*command, "--python", sys.executable, plain, "--output-file", hashed], check=True)
        return {_normalised(pin): found for pin, found in read_hashes(hashed).items()}


def _hashes_of_pip(pin: str) -> set[str]:
    """Return the hash of the file that pip takes; none if its indexes have no such build."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, pin]
        if subprocess.run(command, check=False).returncode != 0:
            sys.stderr.write(f"{pin} is not in pip's indexes here: its hashes stay as they are\n")
        return {f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}" for file in Path(folder).iterdir()}


def _index() -> list[str]:
    """Return the package index that pip is configured with, as uv takes it; uv reads no configuration of pip."""
    get = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    url = (
        os.environ.get("PIP_INDEX_URL")
        or subprocess.run(get, capture_output=True, text=True, check=False).stdout.strip()
    )
    return ["--default-index", url] if url else []


def _normalised(pin: str) -> str:
    name, _, version = pin.partition("==")
    return f"{re.sub(r'[-_.]+', '-', name).lower()}=={version}"


def main() -> int:
    """Write the hashes of every file; return the exit code."""
    for name in FILES:
        write_hashes(ROOT / name, Path(sys.argv[1]))
        sys.stdout.write(f"{name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
