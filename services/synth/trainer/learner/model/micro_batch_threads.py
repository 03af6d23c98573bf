"""Computes the micro-batches of a rank on several threads of the CPU.

Invariants: one thread computes a micro-batch, and torch uses no other for it; results and gradients are taken in the
order of the micro-batches. So no bit depends on how many threads there are.
"""

from __future__ import annotations

import concurrent.futures
import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import torch
from torch import Tensor, nn

from synth.trainer.learner.model.dropout import drawing

_ItemT = TypeVar("_ItemT")
_ResultT = TypeVar("_ResultT")


class MicroBatchThreads:
    """The threads that compute with a policy. At most as many micro-batches are in memory as there are threads."""

    def __init__(self, parameters: list[nn.Parameter], threads: int, *, draws: bool) -> None:
        """parameters: the trained ones. draws: whether training draws from torch's generator, which all threads share:
        then one micro-batch is trained after the other. A `KeyedDropout` does not."""
        self._parameters = parameters
        self._threads = threads
        self.draws = draws
        self._pool = concurrent.futures.ThreadPoolExecutor(threads) if threads > 1 else None

    def map(self, compute: Callable[[_ItemT], _ResultT], micro_batches: Iterable[_ItemT]) -> Iterator[_ResultT]:
        """Yield the result of each micro-batch, computed without gradients."""
        return self._in_order(torch.no_grad()(compute), micro_batches)

    def backward(
        self,
        compute: Callable[[_ItemT], tuple[Tensor, _ResultT]],
        micro_batches: Iterable[_ItemT],
        *,
        key: tuple[int, ...] = (),
    ) -> Iterator[_ResultT]:
        """Add the gradient of each micro-batch's loss to the parameters, and yield its result.

        compute: returns the loss, and the result, which must not need the graph. key: of the step; with the number of
        the micro-batch it decides the numbers of a `KeyedDropout`.
        """
        if self._pool is None or self.draws:
            for number, micro_batch in enumerate(micro_batches):
                with drawing(*key, number):
                    loss, result = compute(micro_batch)
                    loss.backward()
                yield result
            return
        numbered = enumerate(micro_batches)
        for gradients, result in self._in_order(functools.partial(self._gradients, compute, key), numbered):
            for parameter, gradient in zip(self._parameters, gradients, strict=True):
                if gradient is not None:
                    parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
            yield result

    def _gradients(
        self,
        compute: Callable[[_ItemT], tuple[Tensor, _ResultT]],
        key: tuple[int, ...],
        numbered: tuple[int, _ItemT],
    ) -> tuple[tuple[Tensor | None, ...], _ResultT]:
        number, micro_batch = numbered
        with drawing(*key, number):
            loss, result = compute(micro_batch)
            return torch.autograd.grad(loss, self._parameters, allow_unused=True), result

    def _in_order(self, compute: Callable[[_ItemT], _ResultT], micro_batches: Iterable[_ItemT]) -> Iterator[_ResultT]:
        if self._pool is None:
            yield from map(compute, micro_batches)
            return
        waiting = iter(micro_batches)
        first = itertools.islice(waiting, self._threads)
        running = deque(self._pool.submit(compute, micro_batch) for micro_batch in first)
        try:
            while running:
                result = running.popleft().result()
                running.extend(self._pool.submit(compute, after) for after in itertools.islice(waiting, 1))
                yield result
        finally:
            concurrent.futures.wait(running)
