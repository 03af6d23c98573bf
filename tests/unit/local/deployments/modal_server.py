"""A server of the protocol that Modal's SDK speaks: it keeps what it is told, and builds and runs nothing.

It has the calls of a deployment and no other: one that it does not have is answered with UNIMPLEMENTED.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message
from grpclib import GRPCError, Status
from grpclib.const import Cardinality, Handler
from grpclib.server import Server, Stream
from modal_proto import api_pb2

TOKEN = ("ak-token", "as-s3cret")
URL = "https://ours--task-app-one-task-app.modal.run"


class ModalServer:
    """What has been deployed, by id. builds: whether images do; calls: the names of the calls, in their order."""

    def __init__(self) -> None:
        self.url = ""
        self.builds = True
        self.calls: list[str] = []
        self.apps: dict[str, str] = {}
        self.names: dict[str, str] = {}
        self.published: list[api_pb2.AppPublishRequest] = []
        self.functions: dict[str, api_pb2.Function] = {}
        self.images: dict[str, api_pb2.Image] = {}
        self.secrets: dict[str, dict[str, str]] = {}
        self.mounts: dict[str, dict[str, str]] = {}
        self.blobs: dict[str, bytes] = {}
        self._count = 0

    def __mapping__(self) -> dict[str, Handler]:
        mapping: dict[str, Handler] = {}
        for name in dir(type(self)):
            if name[0].isupper():
                request = getattr(api_pb2, f"{name}Request")
                streams = name.endswith("Streaming")
                kind = Cardinality.UNARY_STREAM if streams else Cardinality.UNARY_UNARY
                mapping[f"/modal.client.ModalClient/{name}"] = Handler(self._handler(name), kind, request, Message)
        return mapping

    def _handler(self, name: str) -> Any:
        async def handle(stream: Stream[Any, Any]) -> None:
            request = await stream.recv_message()
            self.calls.append(name)
            given = stream.metadata
            assert given is not None
            if (given.get("x-modal-token-id"), given.get("x-modal-token-secret")) != TOKEN:
                raise GRPCError(Status.UNAUTHENTICATED, "Token validation failed")
            answer = getattr(self, name)(request)
            if isinstance(answer, AsyncIterator):
                async for one in answer:
                    await stream.send_message(one)
            else:
                await stream.send_message(answer)

        return handle

    def new_id(self, kind: str) -> str:
        self._count += 1
        return f"{kind}-{self._count:022d}"

    def AppGetOrCreate(self, request: api_pb2.AppGetOrCreateRequest) -> Message:
        if request.app_name not in self.names:
            raise GRPCError(Status.NOT_FOUND, f"App {request.app_name!r} not found")
        return api_pb2.AppGetOrCreateResponse(app_id=self.names[request.app_name])

    def AppGetByDeploymentName(self, request: api_pb2.AppGetByDeploymentNameRequest) -> Message:
        if request.environment_name:
            raise GRPCError(Status.NOT_FOUND, f"Environment {request.environment_name!r} not found")
        return api_pb2.AppGetByDeploymentNameResponse(app_id=self.names.get(request.name, ""))

    def AppGetLayout(self, request: api_pb2.AppGetLayoutRequest) -> Message:
        ids = next(p.function_ids for p in reversed(self.published) if p.app_id == request.app_id)
        return api_pb2.AppGetLayoutResponse(app_layout=api_pb2.AppLayout(function_ids=ids))

    def AppCreate(self, request: api_pb2.AppCreateRequest) -> Message:
        app_id = self.new_id("ap")
        self.apps[app_id] = request.description
        return api_pb2.AppCreateResponse(app_id=app_id)

    def AppHeartbeat(self, request: api_pb2.AppHeartbeatRequest) -> Message:
        return Empty()

    def AppPublish(self, request: api_pb2.AppPublishRequest) -> Message:
        self.published.append(request)
        self.names[request.name] = request.app_id
        return api_pb2.AppPublishResponse(url="https://modal.com/apps/ours", deployed_at=1.0)

    def AppClientDisconnect(self, request: api_pb2.AppClientDisconnectRequest) -> Message:
        return Empty()

    def AppStop(self, request: api_pb2.AppStopRequest) -> Message:
        self.names = {name: app for name, app in self.names.items() if app != request.app_id}
        return Empty()

    def EnvironmentGetOrCreate(self, request: api_pb2.EnvironmentGetOrCreateRequest) -> Message:
        settings = api_pb2.EnvironmentSettings(image_builder_version="2025.06")
        metadata = api_pb2.EnvironmentMetadata(name="main", settings=settings)
        return api_pb2.EnvironmentGetOrCreateResponse(environment_id=self.new_id("en"), metadata=metadata)

    def SecretGetOrCreate(self, request: api_pb2.SecretGetOrCreateRequest) -> Message:
        secret_id = self.new_id("st")
        self.secrets[secret_id] = dict(request.env_dict)
        return api_pb2.SecretGetOrCreateResponse(secret_id=secret_id)

    def MountBatchedCheckExistence(self, request: api_pb2.MountBatchedCheckExistenceRequest) -> Message:
        missing = [one for one in request.sha256_hex_hashes if one not in self.blobs]
        return api_pb2.MountBatchedCheckExistenceResponse(missing_sha256_hex_hashes=missing)

    def MountPutFile(self, request: api_pb2.MountPutFileRequest) -> Message:
        if request.WhichOneof("data_oneof") == "data":
            self.blobs[request.sha256_hex] = request.data
        return api_pb2.MountPutFileResponse(exists=request.sha256_hex in self.blobs)

    def MountGetOrCreate(self, request: api_pb2.MountGetOrCreateRequest) -> Message:
        mount_id = self.new_id("mo")
        self.mounts[mount_id] = {file.filename: file.sha256_hex for file in request.files}
        return api_pb2.MountGetOrCreateResponse(mount_id=mount_id)

    def ImageGetOrCreate(self, request: api_pb2.ImageGetOrCreateRequest) -> Message:
        image_id = self.new_id("im")
        self.images[image_id] = request.image
        return api_pb2.ImageGetOrCreateResponse(image_id=image_id)

    async def ImageJoinStreaming(self, request: api_pb2.ImageJoinStreamingRequest) -> AsyncIterator[Message]:
        kinds = api_pb2.GenericResult
        result = api_pb2.GenericResult(status=kinds.GENERIC_STATUS_SUCCESS)
        if not self.builds:
            result = api_pb2.GenericResult(status=kinds.GENERIC_STATUS_FAILURE, exception="pip: no such release")
        metadata = api_pb2.ImageMetadata(image_builder_version="2025.06")
        yield api_pb2.ImageJoinStreamingResponse(result=result, metadata=metadata)

    def FunctionPrecreate(self, request: api_pb2.FunctionPrecreateRequest) -> Message:
        function_id = request.existing_function_id or self.new_id("fu")
        return api_pb2.FunctionPrecreateResponse(function_id=function_id, handle_metadata=_handle(request))

    def FunctionCreate(self, request: api_pb2.FunctionCreateRequest) -> Message:
        function_id = request.existing_function_id or self.new_id("fu")
        self.functions[function_id] = request.function
        ranked = api_pb2.FunctionData.RankedFunction(function=request.function)
        return api_pb2.FunctionCreateResponse(
            function_id=function_id,
            function=request.function,
            function_data=api_pb2.FunctionData(ranked_functions=[ranked]),
            handle_metadata=_handle(request.function),
        )

    def commands(self, image_id: str) -> list[str]:
        """The lines of an image and of those below it, from the lowest."""
        image = self.images[image_id]
        below = [line for base in image.base_images for line in self.commands(base.image_id)]
        return [*below, *image.dockerfile_commands]

    def copied(self, image_id: str) -> dict[str, bytes]:
        """The files that an image, and those below it, copy."""
        image = self.images[image_id]
        found = {path: data for base in image.base_images for path, data in self.copied(base.image_id).items()}
        return found | (self.files(image.context_mount_id) if image.context_mount_id else {})

    def files(self, mount_id: str) -> dict[str, bytes]:
        """The files of a mount."""
        return {path: self.blobs[digest] for path, digest in self.mounts[mount_id].items()}


def _handle(of: Any) -> api_pb2.FunctionHandleMetadata:
    return api_pb2.FunctionHandleMetadata(function_name=of.function_name, web_url=URL)


@contextmanager
def modal_server() -> Iterator[ModalServer]:
    """The server, at its `url`, while the block runs."""
    modal, loop = ModalServer(), asyncio.new_event_loop()
    listener = socket.create_server(("127.0.0.1", 0))
    modal.url = f"http://127.0.0.1:{listener.getsockname()[1]}"

    async def start() -> Server:
        server = Server([modal])
        await server.start(sock=listener)
        return server

    async def end() -> None:
        server.close()
        await server.wait_closed()

    server = loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield modal
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
