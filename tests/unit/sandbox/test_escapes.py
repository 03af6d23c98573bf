"""What hostile code tries in the sandbox, in every mode that this machine can start."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from synth.sandbox.command import Limits, Result, Sandbox, why_not
from synth.sandbox.modes import MODES, Mode
from tests.unit.sandbox import attempts
from tests.unit.sandbox.attempts import Targets

SCRIPT = str(Path(attempts.__file__))
SECRET = "the-secret-of-the-service"
LIMITS = Limits(
    seconds=20.0,
    cpu_s=10,
    map_bytes=1 << 28,
    memory_bytes=1 << 28,
    processes=12,
    disk_bytes=1 << 24,
    output_bytes=1 << 16,
)

#: Refused; without the sandbox, each is possible for a process of the same user.
POSSIBLE_OTHERWISE = [
    attempts.environment,
    attempts.environment_of_another_process,
    attempts.arguments_of_another_process,
    attempts.descriptors_of_another_process,
    attempts.tcp_connection,
    attempts.tcp_listener,
    attempts.datagram_to_the_network,
    attempts.netlink,
    attempts.unix_socket,
    attempts.abstract_socket,
    attempts.datagram_by_a_pair,
    attempts.file_of_another_folder,
    attempts.link_to_a_file,
    attempts.hard_link_to_a_file,
    attempts.list_of_folders,
    attempts.file_in_another_folder,
    attempts.permissions_of_a_file,
    attempts.truncation_of_a_file,
    attempts.removal_of_a_file,
    attempts.memory_without_a_file,
    attempts.signal_to_another_process,
    attempts.limits_of_another_process,
    attempts.priority_of_another_process,
    attempts.life_without_the_parent,
    attempts.fork_bomb,
    attempts.thread_bomb,
    attempts.memory,
    attempts.large_file,
]
#: Refused; whether they are possible without the sandbox is up to the machine, or they would harm the test.
ALSO_REFUSED = [
    attempts.environment_of_the_parent,
    attempts.memory_of_the_parent,
    attempts.inherited_descriptors,
    attempts.times_of_a_library,
    attempts.shared_memory_file,
    attempts.system_v_shared_memory,
    attempts.signal_to_the_parent,
    attempts.ptrace,
    attempts.ptrace_of_the_parent,
    attempts.memory_of_another_process,
    attempts.namespace_of_users,
    attempts.mounting,
    attempts.changed_root,
    attempts.keyring,
    attempts.io_uring,
]


@pytest.fixture(scope="module", params=MODES)
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    mode: Mode = request.param
    if why := asyncio.run(why_not(mode)):
        pytest.skip(f"this machine cannot start the sandbox {mode}: {why}")
    return Sandbox(mode)


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Targets]:
    """A service with its secret, of the same user; temporary files go into a folder of these tests."""
    victim = subprocess.Popen(["sleep", "600"], env={"SECRET": SECRET})
    with tempfile.TemporaryDirectory(prefix="other-") as folder, socket.create_server(("127.0.0.1", 0)) as server:
        for name in ("secret", "removable", "truncatable"):
            Path(folder, name).write_text(SECRET)
        stream, named = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
        datagram, abstract = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM), f"victim-{victim.pid}"
        with stream, named, datagram, pytest.MonkeyPatch.context() as patch:
            stream.bind(f"{folder}/stream")
            stream.listen()
            named.bind(f"\0{abstract}")
            named.listen()
            datagram.bind(f"{folder}/datagram")
            patch.setenv("SYNTH_CLUSTER_SECRET", SECRET)
            patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("tmp")))
            yield Targets(
                pid=victim.pid,
                port=server.getsockname()[1],
                stream=f"{folder}/stream",
                datagram=f"{folder}/datagram",
                abstract=abstract,
                file=f"{folder}/secret",
                secret=SECRET,
            )
    victim.kill()
    victim.wait()


def command(name: str, targets: Targets) -> list[str]:
    return [sys.executable, "-I", "-S", SCRIPT, name, json.dumps(targets)]


async def attempt(sandbox: Sandbox, name: str, targets: Targets, limits: Limits = LIMITS) -> Result:
    result = await sandbox.run({}, command(name, targets), limits, readable=[SCRIPT])
    assert not running(name, targets)
    assert not list(Path(tempfile.gettempdir()).glob("sandbox-*/"))
    return result


def running(name: str, targets: Targets) -> list[str]:
    """The processes that run this attempt on these targets."""
    wanted = [part.encode() for part in command(name, targets)[3:]]
    found: list[str] = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if arguments[3:6] == wanted:
            found.append(pid)
    return found


@pytest.mark.parametrize("name", [one.__name__ for one in [*POSSIBLE_OTHERWISE, *ALSO_REFUSED]])
async def test_it_is_refused(sandbox: Sandbox, targets: Targets, name: str) -> None:
    result = await attempt(sandbox, name, targets)
    assert (result.ended, result.code, result.errors) == ("exit", 0, b"")
    assert result.output.startswith(b"held:"), result.output
    assert Path(targets["file"]).read_text() == SECRET


@pytest.mark.parametrize("name", [one.__name__ for one in POSSIBLE_OTHERWISE])
def test_without_the_sandbox_it_is_possible(targets: Targets, name: str, tmp_path: Path) -> None:
    done = subprocess.run(command(name, targets), cwd=tmp_path, capture_output=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == (b"escaped\n", b"")


@pytest.mark.parametrize(
    ("name", "ended"),
    [
        ("memory_of_many", "memory"),
        ("many_files", "disk"),
        ("output_without_end", "output"),
        ("no_end", "time"),
        ("stop_of_itself", "time"),
        ("forks_at_its_end", "exit"),
    ],
)
async def test_what_is_over_a_limit_is_ended_with_all_its_processes(
    sandbox: Sandbox, targets: Targets, name: str, ended: str
) -> None:
    seconds = 0.5 if ended == "time" else LIMITS.seconds
    limits = Limits(seconds=seconds, memory_bytes=300 << 20, processes=12, disk_bytes=1 << 24, output_bytes=1 << 16)
    assert (await attempt(sandbox, name, targets, limits)).ended == ended


async def test_cpu_time_is_limited(sandbox: Sandbox, targets: Targets) -> None:
    limits = Limits(seconds=60.0, cpu_s=1, memory_bytes=1 << 28, processes=1)
    result = await attempt(sandbox, "cpu_without_end", targets, limits)
    assert (result.ended, result.code < 0) == ("exit", True)
    assert result.cpu_s > 0.5


async def test_a_daemon_is_ended_with_the_command_that_left_it(sandbox: Sandbox, targets: Targets) -> None:
    result = await attempt(sandbox, "daemon", targets)
    assert result.output.startswith(b"escaped")


async def test_folders_that_are_too_deep_for_a_path_are_removed(sandbox: Sandbox, targets: Targets) -> None:
    # Their size cannot be measured while it runs, so it may be ended first.
    assert (await attempt(sandbox, "deep_folders", targets)).ended in ("exit", "disk")


async def test_a_cancelled_run_leaves_nothing(sandbox: Sandbox, targets: Targets) -> None:
    task = asyncio.create_task(attempt(sandbox, "no_end", targets))
    async with asyncio.timeout(60):
        while not running("no_end", targets):  # noqa: ASYNC110 - nothing else reports it
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not running("no_end", targets)


#: A service that runs an attempt: its arguments are a mode, the script and the command.
_SERVICE = """
import asyncio, sys
from synth.sandbox.command import Limits, Sandbox
limits = Limits(seconds=600.0, memory_bytes=1 << 28, processes=12, disk_bytes=1 << 20)
asyncio.run(Sandbox(sys.argv[1]).run({}, sys.argv[3:], limits, readable=[sys.argv[2]]))
"""


async def test_a_command_ends_with_the_service_that_is_killed(sandbox: Sandbox, targets: Targets) -> None:
    arguments = [sandbox.mode, SCRIPT, *command("no_end", targets)]
    environment = os.environ | {"TMPDIR": tempfile.gettempdir()}
    service = await asyncio.create_subprocess_exec(sys.executable, "-c", _SERVICE, *arguments, env=environment)
    async with asyncio.timeout(60):
        while not running("no_end", targets):  # noqa: ASYNC110 - nothing else reports it
            await asyncio.sleep(0.01)
        service.kill()
        await service.wait()
        while running("no_end", targets):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    for folder in Path(tempfile.gettempdir()).glob("sandbox-*/"):
        folder.rmdir()  # a service that is killed leaves it


async def test_a_command_has_its_files_and_its_input(sandbox: Sandbox) -> None:
    source = "import sys; open('out', 'w').write('x'); print(open('a/b').read() + sys.stdin.read()); sys.exit(3)"
    result = await sandbox.run({"a/b": b"file, "}, [sys.executable, "-I", "-c", source], LIMITS, stdin=b"input")
    assert (result.ended, result.code, result.output, result.errors) == ("exit", 3, b"file, input\n", b"")


async def test_a_path_that_leads_out_of_the_folder_is_refused(sandbox: Sandbox) -> None:
    with pytest.raises(ValueError, match="leads out of the folder"):
        await sandbox.run({"../x": b""}, ["true"], LIMITS)
