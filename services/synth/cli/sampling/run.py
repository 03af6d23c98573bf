"""Samples the replies of one model to all rows, so many at a time, and keeps each as it arrives."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from synth.cli.api.hosted import Json
from synth.cli.sampling.answers import Answer, AnswerFile, digest_of
from synth.cli.sampling.budget import SpendingLimit
from synth.cli.sampling.endpoints import ChatEndpoint, SamplingOptions
from synth.cli.sampling.rows import PromptRow


@dataclass
class SamplingReport:
    """The counts of a run. kept: replies of earlier runs. stopped: whether the budget, or an error, ended the run."""

    sampled: int = 0
    kept: int = 0
    stopped: bool = False


def requests_of(
    row: PromptRow, endpoint: ChatEndpoint, options: SamplingOptions, samples: int
) -> tuple[Json, list[str]]:
    """Return the body that is sent for each reply to a row, and the digest of each: one reply is not another's."""
    body = options.body(row, endpoint.model)
    return body, [digest_of({**body, "sample": sample}) for sample in range(samples)]


def sample_rows(
    rows: Iterable[PromptRow],
    endpoint: ChatEndpoint,
    options: SamplingOptions,
    answers: AnswerFile,
    *,
    samples: int = 1,
    concurrency: int = 8,
    budget: SpendingLimit,
    progress: Callable[[str], None] = lambda text: None,
) -> SamplingReport:
    """Sample the replies that the file lacks. `concurrency` bounds the memory, for any number of rows.

    An error that no other row would change ends the run after the calls under way, whose replies are kept; then it is
    raised. So does Ctrl-C.
    """
    run = _Sampling(endpoint, answers, budget, progress)
    with ThreadPoolExecutor(concurrency) as pool:
        try:
            for row in rows:
                body, digests = requests_of(row, endpoint, options, samples)
                for sample, request in enumerate(digests):
                    if answers.has(row.number, sample, request):
                        run.report.kept += 1
                        continue
                    reserved = run.make_room(concurrency, body)
                    if reserved is None:
                        run.report.stopped = True
                        break
                    future = pool.submit(endpoint.answer, row.number, sample, request, body)
                    run.under_way[future] = (reserved, body)
                if run.report.stopped:
                    break
        except BaseException:
            # Ctrl-C, or a row that cannot be read: calls under way end, and no pause is waited for.
            endpoint.stop()
            raise
        finally:
            run.finish()
    if run.error is not None:
        raise run.error
    return run.report


class _Sampling:
    def __init__(
        self, endpoint: ChatEndpoint, answers: AnswerFile, budget: SpendingLimit, progress: Callable[[str], None]
    ) -> None:
        self.report = SamplingReport()
        self.under_way: dict[Future[Answer], tuple[float, Json]] = {}
        self._endpoint = endpoint
        self.error: BaseException | None = None
        self._answers = answers
        self._budget = budget
        self._progress = progress

    def make_room(self, concurrency: int, body: Json) -> float | None:
        """Wait until a request may be sent. Returns the reserved cost; None if an error or the limits end the run."""
        while len(self.under_way) >= concurrency:
            self._collect()
        while self.error is None:
            reserved = self._budget.reserve(body)
            if reserved is not None or not self.under_way:
                return reserved
            self._collect()
        return None

    def finish(self) -> None:
        """Keep the replies that are under way."""
        while self.under_way:
            self._collect()

    def _collect(self) -> None:
        done, _ = wait(self.under_way, return_when=FIRST_COMPLETED)
        for future in done:
            (reserved, body), error = self.under_way.pop(future), future.exception()
            answer = future.result() if error is None else None
            self._budget.settle(reserved, body, answer)
            if answer is None:
                self.error = self.error or error
                self._endpoint.stop()
            else:
                self._answers.add(answer)
                self.report.sampled += 1
        total = self.report.sampled + self.report.kept
        self._progress(f"{self._endpoint.model}: {total:,} replies")
