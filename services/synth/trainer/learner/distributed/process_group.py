"""The processes that train one policy together: who they are, what they tell each other, and who takes which rows.

Invariants: every rank calls the same methods in the same order, with as many forwards in between; what they hear of
each other is the same on all, to the bit, so that they decide alike without asking.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

_T = TypeVar("_T")

#: The others wait for so long while one tokenises a large dataset or writes a large checkpoint. A rank that hangs is
#: found sooner, by the service's `child_silence_s`.
COLLECTIVE_TIMEOUT = datetime.timedelta(hours=2)


@dataclass(frozen=True)
class ProcessGroup:
    """This process among `size` of them, from 0; one alone by default, which talks to nobody."""

    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0: it alone writes files and speaks to the service."""
        return self.rank == 0

    def shard_micro_batches(self, micro_batches: list[_T]) -> list[tuple[_T, bool]]:
        """This rank's of the micro-batches, and whether it is idle with one: as many for every rank.

        One that has less runs the last of all once more, idly: a sharded forward needs everybody. Rank 0 never does.
        """
        shard = [(micro_batch, False) for micro_batch in micro_batches[self.rank :: self.size]]
        rounds = math.ceil(len(micro_batches) / self.size)
        return shard if len(shard) == rounds else [*shard, (micro_batches[-1], True)]

    def reduce_metrics(self, metrics: dict[str, float]) -> dict[str, float]:
        """The figures of all ranks in one: a `…/max` is their maximum, all others their sum, in the ranks' order."""
        if self.size == 1:
            return metrics
        gathered: list[dict[str, float]] = [{}] * self.size
        dist.all_gather_object(gathered, metrics)
        total: dict[str, float] = {}
        for rank_metrics in gathered:
            for name, value in rank_metrics.items():
                so_far = total.get(name)
                combined = value if so_far is None else max(so_far, value) if name.endswith("/max") else so_far + value
                total[name] = combined
        return total

    def broadcast(self, value: bool) -> bool:
        """What rank 0 says."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self.broadcast(True)

    @contextlib.contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Rank 0 does what is inside, then the others do: they find what it has left on disk."""
        if not self.is_main:
            self.barrier()
        yield
        if self.is_main:
            self.barrier()

    def all_reduce_(self, gradients: Iterable[Tensor]) -> None:
        """Replace each gradient by the sum over the ranks, in place."""
        if self.size > 1:
            for work in [dist.all_reduce(gradient, async_op=True) for gradient in gradients]:
                assert work is not None
                work.wait()


SINGLE_PROCESS = ProcessGroup()


def bind_store(port: int = 0) -> socket.socket:
    """A socket on loopback for rank 0 to meet the others at; any free port for 0."""
    return socket.create_server(("127.0.0.1", port))


def init_process_group(
    rank: int, size: int, *, device: Literal["cpu", "cuda"], port: int, store_socket: socket.socket | None = None
) -> ProcessGroup:
    """Meet the other ranks of this machine, over gloo on CPU and NCCL on GPUs, a GPU each.

    store_socket: rank 0's, from `bind_store`; it takes the socket over. Returns when all are there.
    """
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
    if loopback is not None:
        # They are on one machine: what they say is nobody else's business.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", loopback)
    if device == "cuda":
        torch.cuda.set_device(rank)
    store = dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
        "127.0.0.1",
        port,
        size,
        is_master=store_socket is not None,
        timeout=COLLECTIVE_TIMEOUT,
        wait_for_workers=False,
        master_listen_fd=None if store_socket is None else store_socket.detach(),
    )
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=COLLECTIVE_TIMEOUT)
    return ProcessGroup(rank, size)
