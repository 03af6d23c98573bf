"""Certificates that are made on the spot, by the machine's openssl."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")


@dataclass(frozen=True)
class Certificate:
    """Files of one certificate and of its key."""

    cert: Path
    key: Path


@dataclass(frozen=True)
class Authority:
    """A CA of a test's own."""

    home: Path
    own: Certificate

    @classmethod
    def at(cls, home: Path, name: str) -> Authority:
        own = Certificate(home / f"{name}.pem", home / f"{name}.key")
        _openssl("req", "-x509", *_KEY, "-nodes", "-days", "2", "-subj", f"/CN={name}", *_to(own))
        return cls(home, own)

    @property
    def cert(self) -> Path:
        return self.own.cert

    def sign(self, name: str, *, hosts: str = "IP:127.0.0.1", passphrase: str = "") -> Certificate:
        """A certificate for these subjectAltNames. passphrase: seals its key."""
        made = Certificate(self.home / f"{name}.pem", self.home / f"{name}.key")
        sealed = ["-passout", f"pass:{passphrase}"] if passphrase else ["-nodes"]
        subject = ["-subj", f"/CN={name}", "-addext", f"subjectAltName={hosts}"]
        signer = ["-CA", str(self.cert), "-CAkey", str(self.own.key)]
        _openssl("req", "-x509", *_KEY, *sealed, "-days", "2", *subject, *signer, *_to(made))
        return made


def _to(made: Certificate) -> tuple[str, ...]:
    return ("-out", str(made.cert), "-keyout", str(made.key))


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
