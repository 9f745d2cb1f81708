"""Requests that arrive together are scored together: four states cost much less than four times one.

Nobody waits for others. While one request is being answered, more arrive; those are the next call.
"""

import asyncio

import numpy as np

from bcd4rec.data.states import FloatArray, States
from bcd4rec.policies.scorer import Scorer

MOST = 64  # states of a call, so that no call takes long


class Batcher:
    """For one scorer and one event loop."""

    def __init__(self, scorer: Scorer):
        self._scorer = scorer
        self._waiting: list[tuple[States, asyncio.Future[FloatArray]]] = []

    async def scores(self, states: States) -> FloatArray:
        """(1, A) as the scorer's `scores` of one state, up to rounding."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._run)  # after the requests that are ready now
        self._waiting.append((states, loop.create_future()))
        return await self._waiting[-1][1]

    def _run(self) -> None:
        now, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._run)
        futures = [future for _, future in now]
        try:
            scores = self._scorer.scores(_stacked([states for states, _ in now]))
        except Exception as error:
            for future in futures:
                _settle(future, error)
            return
        for row, future in enumerate(futures):
            _settle(future, scores[row : row + 1])


def _stacked(rows: list[States]) -> States:
    if len(rows) == 1:
        return rows[0]
    return States(np.concatenate([row.positives for row in rows]), np.concatenate([row.skips for row in rows]))


def _settle(future: "asyncio.Future[FloatArray]", result: FloatArray | Exception) -> None:
    if future.done():  # its client has gone
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
