"""The state of running requests as tensors, one row a request, so that a step runs no Python code per request."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from synth.inference.engines.protocol import Delta, SamplingParams, TopLogprobs
from synth.inference.engines.sampling import Penalties, SamplingTensors

if TYPE_CHECKING:
    from synth.inference.engines.image_prompts import ImagePrompt
    from synth.inference.grammar.tokens import GrammarState


@dataclass(eq=False, slots=True)
class SequenceRequest:
    """One completion under way. deliver: the engine's thread calls it with each delta, or with the error that ends it.

    row: its row in the batch while it runs, else -1. sent: how many tokens were delivered already (streams).
    prompt_key: the prompt's ids as bytes, and its images' digests. generator: of a request with a seed of its own.
    admitted: the engine's thread calls it when the request joins the batch.
    grammar: the state of its grammar, if it has one. images: of its prompt, kept as long as it
    runs. likeliest: of each token that was not delivered yet, the likeliest tokens and their logprobs, if requested.
    """

    id: str
    prompt_ids: list[int]
    params: SamplingParams
    stream: bool
    deliver: Callable[[Delta | Exception], None]
    row: int = -1
    sent: int = 0
    prompt_key: bytes = b""
    generator: torch.Generator | None = None
    grammar: GrammarState | None = None
    images: ImagePrompt | None = None
    likeliest: list[tuple[Tensor, Tensor]] = field(default_factory=list[tuple[Tensor, Tensor]])
    admitted: Callable[[], None] = lambda: None

    @property
    def patches(self) -> int:
        """The number of patches of the images in its prompt."""
        return self.images.patches if self.images is not None else 0

    @property
    def checked_each_step(self) -> bool:
        """Whether every new token may need a delivery: it streams, has stop strings, or a grammar that may fail."""
        return self.stream or bool(self.params.stop) or self.grammar is not None

    def take_likeliest(self) -> list[TopLogprobs]:
        """Return the likeliest tokens that were not delivered yet, as in `Delta`."""
        taken, self.likeliest = self.likeliest, []
        if not taken:
            return []
        ids = torch.stack([ids for ids, _ in taken]).tolist()
        logprobs = torch.stack([logprobs for _, logprobs in taken]).tolist()
        pairs = [zip(*position, strict=True) for position in zip(ids, logprobs, strict=True)]
        return [[(token, logprob) for token, logprob in position if logprob > -math.inf] for position in pairs]


@dataclass(eq=False, slots=True)
class RunningBatch:
    """The N running requests, and their state in tensors of [capacity] rows, of which the first N are in use.

    length int64: tokens in the KV cache, which is also the index of `last`, the newest token (not cached yet). position
    int64: of that token; images make it another number than its index.
    limit int64: the `length` at which the request has all its tokens.
    tokens int64, logprobs float32, versions int32 [capacity, T]: prompt and sampled tokens; logprobs and versions are
    set at sampled positions only.
    """

    device: torch.device
    requests: list[SequenceRequest] = field(default_factory=list[SequenceRequest])
    ints: Tensor = field(init=False)
    floats: Tensor = field(init=False)
    tokens: Tensor = field(init=False)
    logprobs: Tensor = field(init=False)
    versions: Tensor = field(init=False)
    sampling: SamplingTensors | None = None

    def __post_init__(self) -> None:
        self.ints = torch.zeros((5, 0), dtype=torch.int64, device=self.device)
        self.floats = torch.zeros((2, 0), dtype=torch.float32, device=self.device)
        self.tokens = torch.zeros((0, 0), dtype=torch.int64, device=self.device)
        self.logprobs = torch.zeros((0, 0), dtype=torch.float32, device=self.device)
        self.versions = torch.zeros((0, 0), dtype=torch.int32, device=self.device)

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def length(self) -> Tensor:
        return self.ints[0, : len(self)]

    @property
    def last(self) -> Tensor:
        return self.ints[1, : len(self)]

    @property
    def position(self) -> Tensor:
        return self.length + self.ints[4, : len(self)]

    @property
    def limit(self) -> Tensor:
        return self.ints[2, : len(self)]

    def reserve(self, rows: int, length: int) -> None:
        """Make room for `rows` rows of `length` tokens."""
        capacity, width = self.tokens.shape
        if rows <= capacity and length <= width:
            return
        capacity = max(capacity, 1 << (rows - 1).bit_length())
        width = max(width, 1 << (length - 1).bit_length())
        self.ints = _grow(self.ints, (5, capacity))
        self.floats = _grow(self.floats, (2, capacity))
        self.tokens = _grow(self.tokens, (capacity, width))
        self.logprobs = _grow(self.logprobs, (capacity, width))
        self.versions = _grow(self.versions, (capacity, width))

    def add(self, newcomers: list[SequenceRequest]) -> None:
        """Give each newcomer the next free row, with its prompt as history and no sampled token yet."""
        start = len(self)
        ints: list[tuple[int, int, int, int, int]] = []
        floats: list[tuple[float, float]] = []
        for i, request in enumerate(newcomers):
            request.row = start + i
            p, params = len(request.prompt_ids), request.params
            shift = request.images.shift if request.images is not None else 0
            greedy = params.temperature == 0
            ints.append((p, 0, p + params.max_tokens - 1, 0 if greedy else params.top_k, shift))
            floats.append((params.temperature, 1.0 if greedy else params.top_p))
            self.tokens[request.row, :p] = torch.tensor(request.prompt_ids, device=self.device)
        self.requests.extend(newcomers)
        stop = len(self)
        self.ints[:, start:stop] = torch.tensor(ints, device=self.device).T
        self.floats[:, start:stop] = torch.tensor(floats, device=self.device).T
        self.sampling = None

    def remove(self, rows: list[int]) -> tuple[list[int], list[int]]:
        """Free `rows`, and move the last rows into the gaps.

        Returns the moves (sources, targets), which the caller repeats in the KV cache.
        """
        removed = set(rows)
        for row in removed:
            self.requests[row].row = -1
        left = len(self) - len(removed)
        targets = sorted(r for r in removed if r < left)
        sources = [r for r in range(left, len(self)) if r not in removed]
        if sources:
            to, of = torch.tensor(targets, device=self.device), torch.tensor(sources, device=self.device)
            self.ints[:, to] = self.ints[:, of]
            self.floats[:, to] = self.floats[:, of]
            for history in (self.tokens, self.logprobs, self.versions):
                history[to] = history[of]
            for source, target in zip(sources, targets, strict=True):
                request = self.requests[source]
                request.row = target
                self.requests[target] = request
        del self.requests[left:]
        self.sampling = None
        return sources, targets

    def sampling_of(self, start: int) -> SamplingTensors:
        """Return the sampling settings of rows `start` …; those of all rows are cached until the batch changes."""
        if start == 0 and self.sampling is not None:
            return self._in_this_step(self.sampling, start)
        requests = self.requests[start:]
        pairs = [(i, token) for i, r in enumerate(requests) for token in r.params.banned]
        banned = torch.tensor(pairs, device=self.device).T if pairs else None
        stop = len(self)
        sampling = SamplingTensors(
            temperature_N=self.floats[0, start:stop],
            top_p_N=self.floats[1, start:stop],
            top_k_N=self.ints[3, start:stop],
            banned=(banned[0], banned[1]) if banned is not None else None,
            greedy=any(r.params.temperature == 0 for r in requests),
            filtered=any(r.params.temperature > 0 and (r.params.top_p < 1 or r.params.top_k > 0) for r in requests),
            bias=self._bias(requests),
            penalties=self._penalties(requests),
            listed=self._listed(requests),
        )
        if start == 0:
            self.sampling = sampling
        return self._in_this_step(sampling, start)

    def _bias(self, requests: list[SequenceRequest]) -> tuple[Tensor, Tensor, Tensor] | None:
        biases = [(i, token, bias) for i, r in enumerate(requests) for token, bias in r.params.logit_bias]
        if not biases:
            return None
        rows, tokens, values = zip(*biases, strict=True)
        at = torch.tensor([rows, tokens], device=self.device)
        return at[0], at[1], torch.tensor(values, dtype=torch.float32, device=self.device)

    def _penalties(self, requests: list[SequenceRequest]) -> Penalties | None:
        penalised = [(i, r) for i, r in enumerate(requests) if r.params.penalised]
        if not penalised:
            return None
        ints = [(i, len(r.prompt_ids) - r.params.reply_tokens) for i, r in penalised]
        floats = [(r.params.frequency_penalty, r.params.presence_penalty) for _, r in penalised]
        row_K, start_K = torch.tensor(ints, device=self.device).T
        frequency_K, presence_K = torch.tensor(floats, dtype=torch.float32, device=self.device).T
        return Penalties(row_K, frequency_K, presence_K, start_K)

    def _listed(self, requests: list[SequenceRequest]) -> tuple[Tensor, int] | None:
        listed = [(i, r.params.top_logprobs) for i, r in enumerate(requests) if r.params.top_logprobs]
        if not listed:
            return None
        rows, most = zip(*listed, strict=True)
        return torch.tensor(rows, device=self.device), max(most)

    def _in_this_step(self, sampling: SamplingTensors, start: int) -> SamplingTensors:
        """Return the settings with the tokens of rows `start` … so far, and the tokens that their grammars allow."""
        if sampling.penalties is not None:
            stop = len(self)
            sampling = replace(sampling, history=(self.tokens[start:stop], self.ints[0, start:stop]))
        constrained = [(i, r.grammar) for i, r in enumerate(self.requests[start:]) if r.grammar is not None]
        if not constrained:
            return sampling
        rows = torch.tensor([i for i, _ in constrained], device=self.device)
        allowed = torch.from_numpy(np.stack([grammar.allowed() for _, grammar in constrained])).to(self.device)
        return replace(sampling, allowed=(rows, allowed))

    def append(
        self, start: int, token_N: Tensor, logp_N: Tensor, likeliest: tuple[Tensor, Tensor] | None, version: int
    ) -> None:
        """Write the next tokens of rows `start` … to their history. likeliest: see `sample_tokens`."""
        stop = start + len(token_N)
        at = (torch.arange(start, stop, device=self.device), self.ints[0, start:stop])
        self.tokens[at] = token_N
        self.logprobs[at] = logp_N
        self.versions[at] = version
        self.ints[1, start:stop] = token_N
        if likeliest is not None:
            listed = [r for r in self.requests[start:] if r.params.top_logprobs]
            for request, token_M, logp_M in zip(listed, *likeliest, strict=True):
                most = request.params.top_logprobs
                request.likeliest.append((token_M[:most], logp_M[:most]))

    def sampled(self, request: SequenceRequest, *, since: int = 0) -> tuple[list[int], list[float], list[int]]:
        """Return token ids, logprobs and versions of a running request's sampled tokens, from the `since`-th on.

        Counts the newest token, which is at position `length`, as sampled.
        """
        row, a = request.row, len(request.prompt_ids) + since
        b = int(self.ints[0, row]) + 1
        return (
            self.tokens[row, a:b].tolist(),
            self.logprobs[row, a:b].tolist(),
            self.versions[row, a:b].tolist(),
        )


def _grow(old: Tensor, shape: tuple[int, int]) -> Tensor:
    new = torch.zeros(shape, dtype=old.dtype, device=old.device)
    new[: old.shape[0], : old.shape[1]] = old
    return new
