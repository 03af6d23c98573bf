"""Get one vote of one judge: from the cache or by a call. An invalid answer is sent back with its error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from synth.judge.api.chat import JudgeChat
from synth.judge.api.endpoints import JudgeEndpoint
from synth.judge.api.limits import Wish
from synth.judge.cache import AnswerCache
from synth.judge.failures import JudgeTrouble, unreadable
from synth.judge.metrics import CACHED, UNREADABLE
from synth.judge.prompts.answers import Order, Scores, UnusableAnswer
from synth.judge.prompts.asking import JudgePrompt
from synth.judge.prompts.rollout import fence
from synth.judge.usage import UsageCount
from synth.judging.contract import JudgeRollouts
from synth.judging.settings import MAX_CONCURRENCY, JudgeModel
from synth.runtime import logs

log = logs.get("judging")

_VoteT = TypeVar("_VoteT", Scores, Order)


@dataclass(frozen=True)
class ReadyJudge:
    """A judge of a question, and its API."""

    model: JudgeModel
    endpoint: JudgeEndpoint


@dataclass(frozen=True)
class Voting:
    """Gets votes. Each vote is requested once, for all the questions that need it."""

    chat: JudgeChat
    cache: AnswerCache
    _in_flight: dict[str, asyncio.Future[None]] = field(default_factory=dict[str, asyncio.Future[None]])

    async def vote(
        self,
        judge: ReadyJudge,
        prompt: JudgePrompt,
        read: Callable[[str], _VoteT],
        kind: type[_VoteT],
        question: JudgeRollouts,
        *,
        number: int,
        usage: UsageCount,
    ) -> _VoteT:
        """Return one vote: from the cache, a call under way, or a new call. number: of the vote, from 0."""
        model = judge.model
        parts = (judge.endpoint.identity, model.model, repr(model.temperature), str(model.max_tokens), str(number))
        digest = await asyncio.to_thread(prompt.digest, *parts)
        place = f"{question.org} {digest}"
        while True:
            kept = await self.cache.find(question.org, digest, kind)
            if kept is not None:
                CACHED.inc()
                return kept
            under_way = self._in_flight.get(place)
            if under_way is None:
                break
            # Afterwards it is in the cache; if it is not, this call is made here.
            await asyncio.wait([under_way])
        done = self._in_flight[place] = asyncio.get_running_loop().create_future()
        try:
            vote = await self._ask(judge, prompt, read, question, usage)
            await self.cache.put(question.org, digest, vote)
            return vote
        finally:
            del self._in_flight[place]
            done.set_result(None)

    async def _ask(
        self,
        judge: ReadyJudge,
        prompt: JudgePrompt,
        read: Callable[[str], _VoteT],
        question: JudgeRollouts,
        usage: UsageCount,
    ) -> _VoteT:
        """Call the judge, and again with the error of an invalid answer, up to `max_attempts` times."""
        judging, model = question.judging, judge.model
        # Questions of the API itself have no job: they share one name in each organisation.
        job = question.job_id or f"score {question.org}"
        wish = Wish(job=job, rate=judging.requests_per_second, concurrency=judging.max_concurrency)
        messages, wrong = prompt.messages, ""
        sampling = dict(prompt.sampling)
        temperature = sampling.pop("temperature", model.temperature)
        max_tokens = sampling.pop("max_completions_tokens", model.max_tokens)
        for _ in range(judging.max_attempts):
            text = ""
            try:
                answer = await self.chat.ask(
                    judge.endpoint,
                    messages,
                    schema=(prompt.schema_name, prompt.schema),
                    temperature=temperature,
                    max_tokens=max_tokens,
                    beside=sampling,
                    timeout_s=judging.timeout_s,
                    wish=wish,
                    usage=usage,
                )
                text = answer.text
                try:
                    return await self.chat.read_text(read, text, judge.endpoint)
                except UnusableAnswer as error:
                    if answer.cut:
                        raise UnusableAnswer(f"the answer was cut off after {max_tokens} tokens") from error
                    raise
            except UnusableAnswer as error:
                usage.unreadable += 1
                UNREADABLE.inc()
                wrong = str(error)
                log.info("a judge's answer is no scores", judge=judge.endpoint.where, job=question.job_id, wrong=wrong)
                complaint = f"That answer cannot be used: {wrong}. Answer again, with the JSON object alone."
                # The latest answer alone: all of them would outgrow the judge's context.
                messages = [
                    *prompt.messages,
                    *([{"role": "assistant", "content": text}] if text else []),
                    {"role": "user", "content": complaint},
                ]
        raise unreadable(
            f"in {judging.max_attempts} answers it gave no scores that can be used; the last time {wrong}",
            where=judge.endpoint.where,
            fix="raise the judge's max_tokens"
            if "cut off" in wrong
            else "try another judge model, or a plainer rubric",
        )


@dataclass(frozen=True)
class QuestionVotes:
    """The votes of one question. secret: the one from which the fences around rollouts are named."""

    voting: Voting
    secret: str
    question: JudgeRollouts
    judges: Sequence[ReadyJudge]
    usage: UsageCount

    def fence(self, digests: Sequence[str]) -> str:
        """Return the name of the lines around the rollouts of a prompt."""
        return fence(self.secret, self.question.org, digests)

    async def vote(
        self, judge: ReadyJudge, prompt: JudgePrompt, read: Callable[[str], _VoteT], kind: type[_VoteT], number: int
    ) -> _VoteT:
        """Get and count one vote, as `Voting.vote`."""
        vote = await self.voting.vote(judge, prompt, read, kind, self.question, number=number, usage=self.usage)
        self.usage.votes += 1
        return vote

    async def run_all(self, works: Iterable[Callable[[], Awaitable[None]]]) -> None:
        """Run the works of all votes, some at a time: each vote that waits for its turn keeps its prompt."""
        await run_all(works, at_once=min(MAX_CONCURRENCY, self.question.judging.max_concurrency * len(self.judges)))


async def run_all(works: Iterable[Callable[[], Awaitable[None]]], *, at_once: int) -> None:
    """Run all works, `at_once` at a time, each made only when it starts. Raises the gravest `JudgeTrouble`.

    After the first one no work is started, and the running ones are awaited: their answers are paid for, and are kept.
    """
    slots, troubles = asyncio.Semaphore(at_once), list[JudgeTrouble]()

    async def work(one: Callable[[], Awaitable[None]]) -> None:
        try:
            await one()
        except JudgeTrouble as trouble:
            troubles.append(trouble)
        finally:
            slots.release()

    async with asyncio.TaskGroup() as group:
        for one in works:
            await slots.acquire()
            if troubles:
                break
            group.create_task(work(one))
    if troubles:
        raise min(troubles, key=lambda trouble: trouble.gravity)
