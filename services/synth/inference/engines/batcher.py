"""Continuous batching over a causal language model: requests join and leave between steps. Synchronous, one thread.

Invariants: the running requests are rows 0 … n-1; the KV cache of a row holds every token but its newest; a request is
admitted only if every running request could grow to its limit within the KV budget, so no request is ever evicted
half-way; organisations take turns at the places that get free, and the requests of each are admitted in their order.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from synth.errors import SynthError, Transient
from synth.fairness.queue import FairQueue
from synth.images.qwen3_vl import ImagePatches
from synth.inference.engines.attention import additive_mask
from synth.inference.engines.image_prompts import ImageReader, row_positions
from synth.inference.engines.kv_cache import LayerShapes, SequenceCache
from synth.inference.engines.protocol import Delta, EngineCounters, EngineStats, FinishReason
from synth.inference.engines.running_batch import RunningBatch, SequenceRequest
from synth.inference.engines.sampling import sample_tokens

# Padded tokens in one prefill forward, and patches of images: enough to keep a processor busy, few enough to bound the
# activations.
_PREFILL_TOKENS = 16384

# Positions whose logits are in memory at once when a text is scored.
_SCORE_TOKENS = 256

Forward = Callable[[Tensor, Tensor, Tensor | None, SequenceCache | LayerShapes | None, ImagePatches | None], Tensor]
"""(ids [B, Q], positions, mask [B, 1, 1, L] additive or None for causal, cache, images) -> hidden states [B, Q, E].

positions: [B, Q], or with images among the tokens [3, B, Q]. images: of all rows, in the order of their tokens.
Without a cache the keys and values are computed in the call and then dropped.
"""


@dataclass(slots=True)
class _SharedPrompt:
    """A prompt that running requests share. hidden [E]: the last layer's hidden state at the prompt's last token."""

    hidden: Tensor
    holders: set[SequenceRequest] = field(default_factory=set[SequenceRequest])


class Batcher:
    """The running and the waiting requests of one model, advanced one token at a time by `step`."""

    def __init__(
        self,
        *,
        forward: Forward,
        head: Callable[[Tensor], Tensor],
        cache: SequenceCache,
        stop_ids: list[int],
        vocabulary: int,
        device: torch.device,
        decode: Callable[[list[int]], str],
        max_num_seqs: int,
        seed: int | None,
        images: ImageReader | None = None,
    ) -> None:
        """images: reads the images of requests; None for a model without vision."""
        self._images = images
        self._forward = forward
        self._head = head
        self._cache = cache
        self._device = device
        self._decode_text = decode
        self._max_num_seqs = max_num_seqs
        self._stops_V = torch.zeros(vocabulary, dtype=torch.bool, device=device)
        self._stops_V[stop_ids] = True
        self._batch = RunningBatch(device)
        self._waiting = FairQueue[SequenceRequest](lambda request: request.params.org)
        self._prompts: dict[bytes, _SharedPrompt] = {}
        self._generator = torch.Generator()
        self._generator.manual_seed(seed) if seed is not None else self._generator.seed()
        self._steps = 0
        self._counters = EngineCounters()
        self._max_length = 0
        self._max_final_length = 0  # the largest length that any running request may reach
        self.version = 0

    @property
    def idle(self) -> bool:
        """Whether a step would do nothing: no request is there, or the next one's images are being read."""
        if self._batch.requests or not self._waiting:
            return not self._batch.requests
        return not self._has_images(self._waiting.next({}))

    def add(self, request: SequenceRequest) -> None:
        """Queue a request. It joins in a later step, as soon as its largest possible length fits the KV budget."""
        if request.params.seed is not None:
            request.generator = torch.Generator().manual_seed(request.params.seed)
        if request.params.grammar is not None:
            request.grammar = request.params.grammar.begin()
        digests = request.images.digests if request.images is not None else b""
        ids = torch.tensor(request.prompt_ids, dtype=torch.int32).numpy().tobytes()
        request.prompt_key = request.params.org.encode() + digests + ids
        self._waiting.add(request)
        self._read_ahead()

    def abort(self, request: SequenceRequest) -> None:
        """End a request now, and deliver the tokens sampled so far."""
        if request.row >= 0:
            self._deliver(request, finish="abort")
            self._remove([request.row])
        elif self._waiting.remove(request):
            request.deliver(Delta([], [], [], finish_reason="abort"))
            self._read_ahead()

    def step(self) -> None:
        """Admit the requests that fit (one prefill), then sample one token for every running request."""
        newcomers = self._select_admissible()
        if newcomers:
            self._admit(newcomers)
        if self._batch.requests:
            self._decode()
            self._steps += 1

    def recompute(self) -> None:
        """Recompute the KV of every running request, after the weights changed (decision 30)."""
        self._prompts.clear()
        requests = self._batch.requests
        lengths: list[int] = self._batch.length.tolist()
        start = 0
        while start < len(lengths):
            stop, longest, patches = start, 0, 0
            while stop < len(lengths):
                grown, shown = max(longest, lengths[stop]), patches + requests[stop].patches
                if stop > start and max(grown * (stop + 1 - start), shown) > _PREFILL_TOKENS:
                    break
                stop, longest, patches = stop + 1, grown, shown
            self._cache.prepare_prefill(slice(start, stop), None)
            ids = self._batch.tokens[start:stop, :longest]
            if patches:
                # Beyond a row's length there may be image tokens of one that was there before.
                beyond = torch.arange(longest, device=self._device) >= self._batch.length[start:stop, None]
                ids = ids.masked_fill(beyond, 0)
            self._compute_keys(ids, requests[start:stop])
            start = stop

    def sleep(self) -> None:
        """Free the KV cache; nothing may step until `wake`, but requests may be added and aborted."""
        self._prompts.clear()
        self._cache.drop()

    def wake(self) -> None:
        """Compute the KV of every running request again."""
        if self._batch.requests:
            self._cache.reserve(len(self._batch), self._max_length + 1)
            self.recompute()

    def score(self, token_ids: list[int]) -> list[float]:
        """Return logprobs of token_ids[1:] under the live weights (T = 1, full softmax), by a separate forward."""
        ids_1Q = torch.tensor([token_ids], device=self._device)
        hidden_QE = self._forward(ids_1Q, self._positions(1, len(token_ids)), None, None, None)[0, :-1]
        logprobs: list[float] = []
        for hidden_CE, next_C in zip(hidden_QE.split(_SCORE_TOKENS), ids_1Q[0, 1:].split(_SCORE_TOKENS), strict=True):
            logp_CV = torch.log_softmax(self._head(hidden_CE).float(), dim=-1)
            logprobs += logp_CV.gather(1, next_C[:, None]).squeeze(1).tolist()
        return logprobs

    def fail_all(self, error: SynthError) -> None:
        """End every request with an error."""
        for request in [*self._batch.requests, *self._waiting]:
            request.deliver(error)
        self._waiting.clear()
        self._remove(list(range(len(self._batch))))

    def stats(self) -> EngineStats:
        counters = self._counters
        return EngineStats(
            running=len(self._batch),
            waiting=len(self._waiting),
            kv_tokens_used=len(self._batch) * self._max_final_length,
            kv_tokens_budget=self._cache.budget_tokens,
            steps=self._steps,
            sampled_tokens=counters.sampled_tokens,
            prefills=counters.prefills,
            prompts_shared=counters.prompts_shared,
        )

    def _select_admissible(self) -> list[SequenceRequest]:
        """Return the waiting requests that join now: in turns, while KV and one prefill have room."""
        self._read_ahead()
        chosen: list[SequenceRequest] = []
        distinct: set[bytes] = set()
        reserved, longest, patches = self._max_final_length, 0, 0
        while self._waiting and len(self._batch) + len(chosen) < self._max_num_seqs:
            request = self._waiting.next(Counter(r.params.org for r in (*self._batch.requests, *chosen)))
            if request.prompt_key not in distinct:
                if not self._has_images(request):
                    break
                if fault := self._image_fault(request):
                    self._waiting.take(request)
                    request.deliver(fault)
                    # Whoever shows it too waits for it to be read again.
                    self._read_ahead()
                    continue
            prompt = len(request.prompt_ids)
            need = max(reserved, prompt + request.params.max_tokens)
            if (len(self._batch) + len(chosen) + 1) * need > self._cache.budget_tokens:
                break
            if request.prompt_key not in self._prompts and request.prompt_key not in distinct:
                grown, shown = max(longest, prompt), patches + request.patches
                if distinct and max(grown * (len(distinct) + 1), shown) > _PREFILL_TOKENS:
                    break
                distinct.add(request.prompt_key)
                longest, patches = grown, shown
            reserved = need
            self._waiting.take(request)
            chosen.append(request)
        return chosen

    def _read_ahead(self) -> None:
        """Have the images read of those who wait, the first ones first."""
        if self._images is not None:
            # No more than could be admitted at once, however many wait.
            first = itertools.islice(self._waiting, self._max_num_seqs)
            upcoming = (r.images for r in first if r.prompt_key not in self._prompts)
            self._images.read_ahead(images for images in upcoming if images is not None)

    def _has_images(self, request: SequenceRequest) -> bool:
        """Return whether nothing that its prefill needs is still being read."""
        if self._images is None or request.images is None or request.prompt_key in self._prompts:
            return True
        return self._images.is_read(request.images)

    def _image_fault(self, request: SequenceRequest) -> SynthError | None:
        if self._images is None or request.images is None or request.prompt_key in self._prompts:
            return None
        return self._images.fault(request.images)

    def _admit(self, newcomers: list[SequenceRequest]) -> None:
        """Prefill each distinct new prompt once, copy its KV to the requests that share it, and sample first tokens."""
        batch = self._batch
        # Requests that copy from a running one come last, so that the prefilled ones are one slice of batch.
        newcomers.sort(key=lambda r: r.prompt_key in self._prompts)
        start = len(batch)
        self._max_final_length = max(
            self._max_final_length, *(len(r.prompt_ids) + r.params.max_tokens for r in newcomers)
        )
        self._max_length = max(self._max_length, *(len(r.prompt_ids) for r in newcomers))
        self._cache.reserve(start + len(newcomers), self._max_length + 1)
        batch.reserve(start + len(newcomers), self._max_length + 1)
        batch.add(newcomers)
        new_prompts = [r for r in newcomers if r.prompt_key not in self._prompts]
        copies = newcomers[len(new_prompts) :]
        if copies:
            holders = [next(iter(self._prompts[r.prompt_key].holders)).row for r in copies]
            longest = max(len(r.prompt_ids) for r in copies)
            self._cache.move(
                torch.tensor(holders, device=self._device),
                torch.tensor([r.row for r in copies], device=self._device),
                longest,
            )
        if new_prompts:
            self._prefill(new_prompts)
        for request in newcomers:
            self._prompts[request.prompt_key].holders.add(request)
            request.admitted()
        self._counters.prompts_shared += len(newcomers) - len({r.prompt_key for r in new_prompts})
        hidden_NE = torch.stack([self._prompts[r.prompt_key].hidden for r in newcomers])
        self._sample(self._head(hidden_NE), start)

    def _prefill(self, newcomers: list[SequenceRequest]) -> None:
        order: dict[bytes, int] = {}
        source = [order.setdefault(r.prompt_key, len(order)) for r in newcomers]
        requests = {r.prompt_key: r for r in newcomers}
        prompts = [requests[key].prompt_ids for key in order]
        lengths = [len(ids) for ids in prompts]
        longest = max(lengths)
        ids_PL = torch.tensor([ids + [0] * (longest - len(ids)) for ids in prompts])
        self._cache.prepare_prefill(
            slice(newcomers[0].row, newcomers[-1].row + 1), torch.tensor(source, device=self._device)
        )
        hidden_PLE = self._compute_keys(ids_PL.to(self._device), [requests[key] for key in order])
        at = torch.tensor(lengths, device=self._device) - 1
        # Cloned, because a view would keep the hidden states of the whole prefill in memory.
        last_PE = hidden_PLE[torch.arange(len(order), device=self._device), at].clone()
        for i, key in enumerate(order):
            self._prompts[key] = _SharedPrompt(last_PE[i])
        self._counters.prefills += len(order)

    def _decode(self) -> None:
        batch = self._batch
        attended = self._max_length + 1
        self._cache.reserve(len(batch), attended)
        batch.reserve(len(batch), attended + 1)
        lengths_N = batch.length
        self._cache.prepare_decode(lengths_N, attended)
        masked_NL = torch.arange(attended, device=self._device)[None] > lengths_N[:, None]
        mask = additive_mask(masked_NL, self._cache.dtype)
        hidden_N1E = self._forward(batch.last[:, None], batch.position[:, None], mask, self._cache, None)
        batch.length.add_(1)
        self._max_length += 1
        self._sample(self._head(hidden_N1E[:, 0]), 0)

    def _sample(self, logits_NV: Tensor, start: int) -> None:
        """Draw the next token of rows `start` …, write it to their history, and remove the requests that are done."""
        batch = self._batch
        requests = batch.requests[start:]
        n = len(requests)
        uniform_N = torch.rand(n, dtype=torch.float64, generator=self._generator)
        for i, request in enumerate(requests):
            if request.generator is not None:
                uniform_N[i] = torch.rand((), dtype=torch.float64, generator=request.generator)
        token_N, logp_N, likeliest = sample_tokens(logits_NV, batch.sampling_of(start), uniform_N.to(self._device))
        batch.append(start, token_N, logp_N, likeliest, self.version)
        self._counters.sampled_tokens += n

        stopped_N = self._stops_V[token_N]
        # The only transfer from the device in a step. Flags: 1 all tokens sampled, 2 stop token sampled, 4 not finite.
        status_N = (batch.length[start:] >= batch.limit[start:]) + 2 * stopped_N + 4 * ~torch.isfinite(logp_N)
        finished: list[int] = []
        for request, status in zip(requests, status_N.tolist(), strict=True):
            if status or request.checked_each_step:
                self._check_finished(request, status, finished)
        self._remove(finished)

    def _check_finished(self, request: SequenceRequest, status: int, finished: list[int]) -> None:
        """Deliver a delta, the end or an error after a new token; append the row to `finished` if the request ends."""
        if status >= 4:
            request.deliver(Transient(f"policy version {self.version} gives logits that are not finite"))
            finished.append(request.row)
            return
        if request.grammar is not None:
            try:
                request.grammar.advance(int(self._batch.ints[1, request.row]))
            except SynthError as error:
                request.deliver(error)
                finished.append(request.row)
                return
        stop_text = self._stop_text(request) if request.params.stop and status < 2 else None
        if status or stop_text is not None:
            finish: FinishReason = "stop" if status >= 2 or stop_text is not None else "length"
            self._deliver(request, finish=finish, stop_text=stop_text)
            finished.append(request.row)
        elif request.stream:
            self._deliver(request)

    def _stop_text(self, request: SequenceRequest) -> str | None:
        """Return the stop string that the newest token completed, if any."""
        row, stop = request.row, request.params.stop
        end = int(self._batch.ints[0, row]) + 1
        # A character has at most four bytes, so at most four tokens of a byte-level vocabulary.
        start = max(len(request.prompt_ids), end - 4 * max(map(len, stop)) - 4)
        text = self._decode_text(self._batch.tokens[row, start:end].tolist())
        return next((s for s in stop if s in text), None)

    def _deliver(
        self, request: SequenceRequest, *, finish: FinishReason | None = None, stop_text: str | None = None
    ) -> None:
        ids, logprobs, versions = self._batch.sampled(request, since=request.sent)
        request.sent += len(ids)
        top = request.take_likeliest()
        request.deliver(Delta(ids, logprobs, versions, finish, stop_text, top_logprobs=top))

    def _remove(self, gone: list[int]) -> None:
        if not gone:
            return
        for row in gone:
            request = self._batch.requests[row]
            shared = self._prompts.get(request.prompt_key)
            if shared is not None:
                shared.holders.discard(request)
                if not shared.holders:
                    del self._prompts[request.prompt_key]
        sources, targets = self._batch.remove(gone)
        if sources:
            self._cache.move(
                torch.tensor(sources, device=self._device),
                torch.tensor(targets, device=self._device),
                self._max_length,
            )
        running = self._batch.requests
        self._max_length = int(self._batch.length.max()) if running else 0
        self._max_final_length = max((len(r.prompt_ids) + r.params.max_tokens for r in running), default=0)
        self._read_ahead()  # also for requests that would have shared a prompt that has ended

    def _compute_keys(self, ids_PL: Tensor, requests: list[SequenceRequest]) -> Tensor:
        """Compute the keys and values of requests from their beginnings; the hidden states [P, L, E]."""
        rows, length = ids_PL.shape
        prompts = [request.images for request in requests]
        if not any(prompts):
            return self._forward(ids_PL, self._positions(rows, length), None, self._cache, None)
        positions_3PL = row_positions(prompts, length, self._device)
        assert self._images is not None
        return self._forward(ids_PL, positions_3PL, None, self._cache, self._images.patches(prompts, self._device))

    def _positions(self, rows: int, length: int) -> Tensor:
        return torch.arange(length, device=self._device)[None].expand(rows, length)
