"""Pins images and GitHub actions: `python -m contracts.digests` resolves each tag of `deploy/digests.toml`.

It writes the digests into that file, and from there into every place that names an image or an action: the Compose
file, the Dockerfile, the workflows. It needs the images' registry and GitHub's API; `--write` only copies the digests
of the file.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import tomlkit

from synth.errors import Problem, UserError

ROOT = Path(__file__).parents[1]
FILE = "deploy/digests.toml"
_REGISTRY = "https://registry-1.docker.io"
_GITHUB = "https://api.github.com"
_WAIT_S = 30.0
#: An index of images for several platforms, or the image of one, in the formats of Docker and OCI.
_MANIFESTS = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
_IMAGE = re.compile(r"^(\s*(?:image:|FROM)\s+)([\w./-]+:[\w.-]+)(?:@(sha256:[0-9a-f]{64}))?", re.MULTILINE)
_ACTION = re.compile(r"^(\s*(?:-\s+)?uses:\s+)([\w.-]+/[\w./-]+)@(?:([0-9a-f]{40}) # (\S+)|(\S+))[ \t]*$", re.MULTILINE)
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True)
class Named:
    """An image or an action that a file names. digest: "" if the file has the tag alone."""

    file: Path
    name: str
    digest: str


def places(root: Path = ROOT) -> list[Path]:
    """Return the files that may name images and actions."""
    return [
        *sorted(root.glob("docker-compose*.yml")),
        *sorted((root / "deploy").glob("*Dockerfile*")),
        *sorted((root / ".github" / "workflows").glob("*.y*ml")),
    ]


def named(root: Path = ROOT) -> Iterator[Named]:
    """Find each image and each action, as `NAME:TAG` and `OWNER/NAME@TAG`."""
    for file in places(root):
        text = file.read_text()
        for match in _IMAGE.finditer(text):
            yield Named(file, match[2], match[3] or "")
        for match in _ACTION.finditer(text):
            yield Named(file, f"{match[2]}@{match[4] or match[5]}", match[3] or "")


def read_digests(root: Path = ROOT) -> dict[str, str]:
    """Return the digest of each image and action; "" of one that was never resolved."""
    document = tomlkit.parse((root / FILE).read_text()).unwrap()
    return {name: digest for table in ("images", "actions") for name, digest in document[table].items()}


def resolve(root: Path, *, registry: str, github: str) -> None:
    """Write the digest that each tag has now into the file.

    Raises `UserError` with every tag that could not be resolved; the file keeps the digests of these.
    """
    document = tomlkit.parse((root / FILE).read_text())
    problems: list[Problem] = []
    with httpx.Client(timeout=_WAIT_S, follow_redirects=True) as http:

        def image(name: str) -> str:
            return image_digest(http, registry, name)

        def action(name: str) -> str:
            return action_commit(http, github, name)

        lookups: tuple[tuple[str, Callable[[str], str]], ...] = (("images", image), ("actions", action))
        for table, look_up in lookups:
            for name in document[table]:  # pyright: ignore[reportGeneralTypeIssues]
                try:
                    document[table][name] = look_up(name)  # pyright: ignore[reportIndexIssue]
                except (httpx.HTTPError, UserError) as error:
                    reason = str(error).partition("\n")[0]
                    problems.append(Problem(what=f"{name} is not resolved: {reason}", where=FILE))
    (root / FILE).write_text(tomlkit.dumps(document))
    if problems:
        raise UserError(problems)


def image_digest(http: httpx.Client, registry: str, name: str) -> str:
    """Return the digest of the manifest that a tag names, computed from its bytes. registry: its address."""
    repository, _, tag = name.rpartition(":")
    path = repository if "/" in repository else f"library/{repository}"
    url, headers = f"{registry}/v2/{path}/manifests/{tag}", {"Accept": _MANIFESTS}
    reply = http.get(url, headers=headers)
    if reply.status_code == httpx.codes.UNAUTHORIZED:
        token = _token(http, reply.headers.get("WWW-Authenticate", ""))
        reply = http.get(url, headers=headers | {"Authorization": f"Bearer {token}"})
    reply.raise_for_status()
    digest = f"sha256:{hashlib.sha256(reply.content).hexdigest()}"
    if (told := reply.headers.get("Docker-Content-Digest", digest)) != digest:
        raise UserError(Problem(what=f"the registry names {told}, and sent {digest}", where=url))
    return digest


def action_commit(http: httpx.Client, github: str, name: str) -> str:
    """Return the commit that a tag of an action's repository names."""
    path, _, tag = name.partition("@")
    repository = "/".join(path.split("/")[:2])
    url = f"{github}/repos/{repository}/commits/{tag}"
    commit = http.get(url, headers={"Accept": "application/vnd.github.sha"}).raise_for_status().text.strip()
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise UserError(Problem(what=f"GitHub answered {commit[:60]!r}", expected="a commit", where=url))
    return commit


def _token(http: httpx.Client, challenge: str) -> str:
    """Get a token for anonymous reading, as the registry's challenge describes it."""
    fields = dict(_CHALLENGE.findall(challenge))
    if not challenge.startswith("Bearer ") or "realm" not in fields:
        raise UserError(Problem(what=f"the registry requires {challenge[:80]!r}", expected="a Bearer challenge"))
    query = {key: value for key, value in fields.items() if key in ("service", "scope")}
    body = http.get(fields["realm"], params=query).raise_for_status().json()
    return body.get("token") or body["access_token"]


def write(root: Path = ROOT) -> None:
    """Copy the digests of the file into the places that name their images and actions."""
    digests = read_digests(root)

    def pinned_image(match: re.Match[str]) -> str:
        digest = digests.get(match[2], "")
        return f"{match[1]}{match[2]}@{digest}" if digest else match[0]

    def pinned_action(match: re.Match[str]) -> str:
        tag = match[4] or match[5]
        commit = digests.get(f"{match[2]}@{tag}", "")
        return f"{match[1]}{match[2]}@{commit} # {tag}" if commit else match[0]

    for file in places(root):
        text = file.read_text()
        if (pinned := _ACTION.sub(pinned_action, _IMAGE.sub(pinned_image, text))) != text:
            file.write_text(pinned)


def main(arguments: list[str] | None = None) -> int:
    """Resolve the tags and write their digests; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m contracts.digests", description=__doc__)
    parser.add_argument("--write", action="store_true", help="copy the digests of the file, without the network")
    parser.add_argument("--registry", default=_REGISTRY, help="of the images (%(default)s)")
    parser.add_argument("--github", default=_GITHUB, help="GitHub's API (%(default)s)")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    options = parser.parse_args(arguments)
    code = 0
    if not options.write:
        try:
            resolve(options.root, registry=options.registry, github=options.github)
        except UserError as error:
            sys.stderr.write(f"{error}\n")
            code = 1
    write(options.root)
    return code


if __name__ == "__main__":
    sys.exit(main())
