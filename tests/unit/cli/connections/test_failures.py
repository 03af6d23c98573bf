"""What a user reads of a connection that fails: the cause in words, and what to do about it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from synth.cli.api.task_app import TaskAppConnection, TaskAppError
from synth.client.connections.config import ConfigValue


@pytest.fixture
def plain() -> Iterator[int]:
    """The port of a server that answers each connection in plain text."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            try:
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            except OSError:
                return

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def told(url: str) -> str:
    with TaskAppConnection(ConfigValue(url, "rl.toml"), None) as app, pytest.raises(TaskAppError) as caught:
        app.task_info()
    return str(caught.value)


def test_a_port_where_nothing_listens():
    assert told("http://127.0.0.1:9") == (
        "http://127.0.0.1:9/task_info: cannot be reached (nothing listens at this address); is it running, and is this "
        "its address?"
    )


def test_a_host_that_has_no_address():
    assert told("http://nowhere.invalid") == (
        "http://nowhere.invalid/task_info: cannot be reached (no address is known for this host's name); check the "
        "spelling of the host's name, and that this machine is online"
    )


def test_https_to_a_server_that_speaks_http(plain: int):
    assert told(f"https://127.0.0.1:{plain}") == (
        f"https://127.0.0.1:{plain}/task_info: cannot be reached (what answers does not speak TLS as https needs it); "
        "is it http:// in place of https://, or another port?"
    )
