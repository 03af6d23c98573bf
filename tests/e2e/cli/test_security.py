"""`synthctl doctor --security` on a cluster of `synthctl up`."""

from __future__ import annotations

import json

from tests.e2e.platform import Platform


def test_the_doctor_names_what_a_cluster_on_one_machine_lacks_and_a_file_that_others_may_read(platform: Platform):
    shell = platform.shell
    (shell.folder / ".env").chmod(0o600)
    done = shell.run("doctor", "--security", "-o", "json")
    assert done.returncode == 0, done.stdout
    results = {f["check"]: f["result"] for f in json.loads(done.stdout)}
    for check, result in (
        ("secrets", "warning"),
        ("SYNTH_ALLOW_LOOPBACK", "warning"),
        ("operator keys", "warning"),
        ("bus logins", "ok"),
        ("bus greeting", "ok"),
        ("bus monitor", "ok"),
        ("service ports", "ok"),
        ("SYNTH_PYTHON_GRADERS", "ok"),
        ("SYNTH_MODEL_HUB", "ok"),
        ("key files", "ok"),
        ("data folder", "ok"),
        ("containers", "not checked"),
        ("backups", "not checked"),
    ):
        assert results[check] == result, (check, results)
    (shell.folder / ".env").chmod(0o640)
    try:
        done = shell.run("doctor", "--security")
    finally:
        (shell.folder / ".env").chmod(0o600)
    assert done.returncode == 1
    assert any(line.startswith("key files\tfailed\t") and "chmod 600" in line for line in done.stdout.splitlines())
