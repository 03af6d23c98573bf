"""What hostile code tries. `python -I attempts.py NAME TARGETS` runs one attempt, and prints whether it escaped.

An attempt returns if it has done what must not be possible, and raises `OSError` or `MemoryError` if it was refused.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import resource
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, TypedDict

MOUNT, UNSHARE_USER, PTRACE_ATTACH, PDEATHSIG = 165, 0x10000000, 16, 1
_libc: Any = ctypes.CDLL(None, use_errno=True)


class Targets(TypedDict):
    """What is outside. pid: a process of the same user, with the secret in its environment. port: where TCP is listened
    to. stream, datagram: paths of Unix sockets; abstract: the name of one. file: with the secret."""

    pid: int
    port: int
    stream: str
    datagram: str
    abstract: str
    file: str
    secret: str


def checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def require(condition: bool) -> None:
    if not condition:
        raise PermissionError("nothing to see")


def environment(t: Targets) -> None:
    require(any(t["secret"] in value for value in os.environ.values()))


def environment_of_another_process(t: Targets) -> None:
    require(t["secret"].encode() in Path(f"/proc/{t['pid']}/environ").read_bytes())


def environment_of_the_parent(t: Targets) -> None:
    Path(f"/proc/{os.getppid()}/environ").read_bytes()


def memory_of_the_parent(t: Targets) -> None:
    with open(f"/proc/{os.getppid()}/mem", "r+b"):
        pass


def arguments_of_another_process(t: Targets) -> None:
    Path(f"/proc/{t['pid']}/cmdline").read_bytes()


def descriptors_of_another_process(t: Targets) -> None:
    require(bool(os.listdir(f"/proc/{t['pid']}/fd")))


def inherited_descriptors(t: Targets) -> None:
    def is_open(fd: int) -> bool:
        try:
            os.fstat(fd)
        except OSError:
            return False
        return True

    require(any(map(is_open, range(3, 256))))


def tcp_connection(t: Targets) -> None:
    socket.create_connection(("127.0.0.1", t["port"])).close()


def tcp_listener(t: Targets) -> None:
    socket.create_server(("127.0.0.1", 0)).close()


def datagram_to_the_network(t: Targets) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        out.sendto(b"x", ("127.0.0.1", t["port"]))


def netlink(t: Targets) -> None:
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).close()


def unix_socket(t: Targets) -> None:
    with socket.socket(socket.AF_UNIX) as out:
        out.connect(t["stream"])


def abstract_socket(t: Targets) -> None:
    with socket.socket(socket.AF_UNIX) as out:
        out.connect("\0" + t["abstract"])


def datagram_by_a_pair(t: Targets) -> None:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with one, other:
        one.sendto(b"x", t["datagram"])


def file_of_another_folder(t: Targets) -> None:
    require(t["secret"] in Path(t["file"]).read_text())


def link_to_a_file(t: Targets) -> None:
    Path("link").symlink_to(t["file"])
    require(t["secret"] in Path("link").read_text())


def hard_link_to_a_file(t: Targets) -> None:
    os.link(t["file"], Path(t["file"]).with_name(f"hard-{os.getpid()}"))


def list_of_folders(t: Targets) -> None:
    require(bool(os.listdir(Path(t["file"]).parent)))


def file_in_another_folder(t: Targets) -> None:
    Path(t["file"]).with_name(f"new-{os.getpid()}").write_text("x")


def removal_of_a_file(t: Targets) -> None:
    os.unlink(Path(t["file"]).with_name("removable"))


def permissions_of_a_file(t: Targets) -> None:
    os.chmod(t["file"], 0o600)


def truncation_of_a_file(t: Targets) -> None:
    os.truncate(Path(t["file"]).with_name("truncatable"), 0)


def times_of_a_library(t: Targets) -> None:
    os.utime(os.__file__)


def shared_memory_file(t: Targets) -> None:
    path = Path(f"/dev/shm/attempt-{os.getpid()}")
    path.write_text("x")
    path.unlink()


def memory_without_a_file(t: Targets) -> None:
    os.memfd_create("x")


def system_v_shared_memory(t: Targets) -> None:
    identifier = checked(_libc.shmget(0, 4096, 0o1600))
    _libc.shmctl(identifier, 0, None)


def signal_to_another_process(t: Targets) -> None:
    os.kill(t["pid"], 0)


def signal_to_the_parent(t: Targets) -> None:
    # pid 1 of a namespace ignores it: what counts is that its work goes on.
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(0.2)
    require(os.getppid() != 1)


def ptrace(t: Targets) -> None:
    checked(_libc.ptrace(PTRACE_ATTACH, t["pid"], None, None))


def ptrace_of_the_parent(t: Targets) -> None:
    checked(_libc.ptrace(PTRACE_ATTACH, os.getppid(), None, None))


def memory_of_another_process(t: Targets) -> None:
    class Part(ctypes.Structure):
        _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))

    buffer = ctypes.create_string_buffer(8)
    ours = Part(ctypes.addressof(buffer), 8)
    theirs = Part(1, 8)
    if _libc.process_vm_readv(t["pid"], ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0) < 0:
        # A wrong address is looked at only by a caller that may read.
        require(ctypes.get_errno() == 14)


def limits_of_another_process(t: Targets) -> None:
    resource.prlimit(t["pid"], resource.RLIMIT_CORE, (0, 0))


def priority_of_another_process(t: Targets) -> None:
    os.setpriority(os.PRIO_PROCESS, t["pid"], 1)


def namespace_of_users(t: Targets) -> None:
    checked(_libc.unshare(UNSHARE_USER))


def mounting(t: Targets) -> None:
    checked(_libc.mount(b"none", str(Path.cwd()).encode(), b"tmpfs", 0, None))


def changed_root(t: Targets) -> None:
    os.chroot(".")


def keyring(t: Targets) -> None:
    checked(_libc.syscall(ctypes.c_long(250), 0, -3, 0, 0, 0))


def io_uring(t: Targets) -> None:
    checked(_libc.syscall(ctypes.c_long(425), 1, ctypes.create_string_buffer(120)))


def life_without_the_parent(t: Targets) -> None:
    checked(_libc.prctl(PDEATHSIG, 0, 0, 0, 0))


def fork_bomb(t: Targets) -> None:
    pids: list[int] = []
    try:
        while len(pids) < 200:
            pid = os.fork()
            if pid == 0:
                time.sleep(100)
                os._exit(0)
            pids.append(pid)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def thread_bomb(t: Targets) -> None:
    end = threading.Event()
    try:
        for _ in range(200):
            threading.Thread(target=end.wait, daemon=True).start()
    except RuntimeError as error:
        raise OSError(str(error)) from error
    finally:
        end.set()


def memory(t: Targets) -> None:
    mmap.mmap(-1, 1 << 30).close()


def large_file(t: Targets) -> None:
    with open("large", "wb") as file:
        file.truncate(1 << 30)


# What must be ended from outside. `escaped` is not printed before the end.


def memory_of_many(t: Targets) -> None:
    for _ in range(4):
        if os.fork() == 0:
            break
    kept = bytearray(100 << 20)
    time.sleep(60)
    del kept


def many_files(t: Targets) -> None:
    for number in range(1 << 20):
        Path(str(number)).write_bytes(b"x" * 4096)


def output_without_end(t: Targets) -> None:
    while True:
        os.write(1, b"x" * 65536)


def cpu_without_end(t: Targets) -> None:
    while True:
        pass


def no_end(t: Targets) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGXCPU):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(600)


def stop_of_itself(t: Targets) -> None:
    with suppress(PermissionError):  # a kernel before Landlock 6
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(600)


def forks_at_its_end(t: Targets) -> None:
    """Each process makes another one and ends, in a session of its own, for ever."""
    while True:
        try:
            if os.fork():
                time.sleep(0.001)
                os._exit(0)
            os.setsid()
        except OSError:
            time.sleep(0.001)


def daemon(t: Targets) -> None:
    for _ in range(2):
        if os.fork():
            return
        os.setsid()
    for number in (1, 2):
        os.close(number)
    time.sleep(600)


def deep_folders(t: Targets) -> None:
    for _ in range(3000):
        os.mkdir("folder-with-a-name")
        os.chdir("folder-with-a-name")
    os.mkdir("closed", mode=0)


def main() -> None:
    name, targets = sys.argv[1], json.loads(sys.argv[2])
    try:
        globals()[name](targets)
    except (OSError, MemoryError) as error:
        print("held:", type(error).__name__, error, flush=True)  # noqa: T201
    else:
        print("escaped", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
