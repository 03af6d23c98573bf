"""The processes that train one policy together: their collectives, and which rank trains which micro-batches.

Invariants: every rank calls the same methods in the same order, with as many forwards in between; a collective returns
the same value on every rank, to the bit, so that all ranks take the same decisions without another message.
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

#: The timeout of a collective: in effect none, but torch requires a number. One rank may tokenise a large dataset or
#: write a large checkpoint while the others wait; the service kills a process that hangs, as it sends no message.
COLLECTIVE_TIMEOUT = datetime.timedelta(days=365)


@dataclass(frozen=True)
class ProcessGroup:
    """The position of this process, `rank` from 0, among `size` processes. With one process no method communicates."""

    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which alone writes files and sends messages to the service."""
        return self.rank == 0

    def shard_micro_batches(self, micro_batches: list[_T]) -> list[tuple[_T, bool]]:
        """Return the micro-batches of this rank, each with whether it is a dummy; every rank gets the same number.

        A rank with one fewer runs the last of all micro-batches once more as a dummy, because a sharded forward needs
        every rank. A dummy adds nothing to any gradient or metric. Rank 0 never has one.
        """
        shard = [(micro_batch, False) for micro_batch in micro_batches[self.rank :: self.size]]
        rounds = math.ceil(len(micro_batches) / self.size)
        return shard if len(shard) == rounds else [*shard, (micro_batches[-1], True)]

    def reduce_metrics(self, metrics: dict[str, float]) -> dict[str, float]:
        """Return the metrics of all ranks added up by `add_metrics`, in the order of the ranks."""
        if self.size == 1:
            return metrics
        gathered: list[dict[str, float]] = [{}] * self.size
        dist.all_gather_object(gathered, metrics)
        total: dict[str, float] = {}
        for rank_metrics in gathered:
            add_metrics(total, rank_metrics)
        return total

    def broadcast(self, value: bool) -> bool:
        """Return the value that rank 0 passed."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    def barrier(self) -> None:
        """Wait until every rank has called this."""
        self.broadcast(True)

    @contextlib.contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Run the block on rank 0 first, then on the other ranks, which find the files that rank 0 wrote."""
        if not self.is_main:
            self.barrier()
        yield
        if self.is_main:
            self.barrier()

    def all_reduce_(self, gradients: Iterable[Tensor]) -> None:
        """Replace each gradient by its sum over the ranks, in place."""
        if self.size > 1:
            for work in [dist.all_reduce(gradient, async_op=True) for gradient in gradients]:
                assert work is not None
                work.wait()


SINGLE_PROCESS = ProcessGroup()


def add_metrics(total: dict[str, float], new: dict[str, float]) -> None:
    """Add metrics to a running total, in place: the maximum of a `…/max`, the sum of any other."""
    for name, value in new.items():
        so_far = total.get(name, 0.0)
        total[name] = max(so_far, value) if name.endswith("/max") else so_far + value


def bind_store(port: int = 0) -> socket.socket:
    """Return a listening socket on loopback for rank 0's store; port 0 takes any free port."""
    return socket.create_server(("127.0.0.1", port))


def init_process_group(
    rank: int, size: int, *, device: Literal["cpu", "cuda"], port: int, store_socket: socket.socket | None = None
) -> ProcessGroup:
    """Connect to the other ranks of this machine, over gloo on CPU and NCCL on GPUs, a GPU each.

    store_socket: from `bind_store`, on rank 0 alone; the store takes it over. Returns when all ranks have connected.
    """
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
    if loopback is not None:
        # All ranks are on one machine, so their traffic stays on loopback.
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
