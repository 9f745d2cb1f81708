"""Numbers for Prometheus: what the server did since it started, and response rates as the database counts them."""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from bcd4rec.evaluation.canary import Decision
from bcd4rec.serving.storage.records import ORGANIC, ArmCounts, StoreStatus

BUCKETS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.007, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0)
DECISIONS: tuple[Decision, ...] = get_args(Decision)


class Metrics:
    def __init__(self, arms: Callable[[], list[ArmCounts]], status: Callable[[], StoreStatus]):
        self.registry = CollectorRegistry()
        self._latency = Histogram(
            "bcd4rec_request_seconds", "Time to answer.", ["route"], buckets=BUCKETS, registry=self.registry
        )
        self._requests = Counter("bcd4rec_requests", "Requests by status.", ["route", "status"], registry=self.registry)
        self.unknown = Counter("bcd4rec_unknown_items", "Items that the policy does not know.", registry=self.registry)
        self.unknown_responses = Counter(
            "bcd4rec_unknown_responses", "Responses in sessions that the policy does not know.", registry=self.registry
        )
        self.unmatched = Counter(
            "bcd4rec_unmatched_feedback", "Responses to what was not recommended.", registry=self.registry
        )
        self.unlogged = Counter(
            "bcd4rec_unlogged_impressions", "Slates that were shown and not stored.", registry=self.registry
        )
        self._recommended = Counter(
            "bcd4rec_recommendations", "Slates by policy version.", ["policy", "arm"], registry=self.registry
        )
        self.registry.register(_Stored(arms, status))

        # Finding a labelled counter takes longer than counting, so they are kept.
        self._latency_of = lru_cache(maxsize=1000)(self._latency.labels)
        self._requests_of = lru_cache(maxsize=1000)(self._requests.labels)
        self._recommended_of = lru_cache(maxsize=1000)(self._recommended.labels)

    def request(self, route: str, status: int, seconds: float) -> None:
        self._latency_of(route).observe(seconds)
        self._requests_of(route, str(status)).inc()

    def recommended(self, policy: str, arm: str) -> None:
        self._recommended_of(policy, arm).inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)


class CanaryMetrics:
    """A canary's numbers, as `described` tells them."""

    def __init__(self, described: Callable[[], dict[str, Any]]):
        self._described = described

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        found = self._described()
        sessions = GaugeMetricFamily("bcd4rec_canary_sessions", "Sessions that were counted.", labels=["arm"])
        for arm, count in found["sessions"].items():
            sessions.add_metric([arm], count)
        yield sessions
        ends = GaugeMetricFamily("bcd4rec_canary_difference", "Where new - old lies.", labels=["end"])
        for end in ("low", "high"):
            ends.add_metric([end], found[end])
        yield ends
        yield GaugeMetricFamily("bcd4rec_canary_share", "Of the sessions that begin, the new arm's.", found["share"])
        decided = GaugeMetricFamily("bcd4rec_canary_decision", "1 for what was decided.", labels=["decision"])
        for decision in DECISIONS:
            decided.add_metric([decision.replace(" ", "_")], int(found["decision"] == decision))
        yield decided


class _Stored:
    """Read when asked for, so that the numbers outlive the process."""

    def __init__(self, arms: Callable[[], list[ArmCounts]], status: Callable[[], StoreStatus]):
        self._arms, self._status = arms, status

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        shown = CounterMetricFamily("bcd4rec_impressions", "Shown items.", labels=["policy", "arm"])
        answers = CounterMetricFamily(
            "bcd4rec_responses", "Shown items by their response.", labels=["policy", "arm", "response"]
        )
        for one in self._arms():
            if one.arm == ORGANIC:
                continue
            shown.add_metric([one.policy, one.arm], one.impressions)
            for response, count in one.responses.items():
                answers.add_metric([one.policy, one.arm, response], count)
        yield shown
        yield answers
        status = self._status()
        yield GaugeMetricFamily("bcd4rec_storage_connected", "1 if the database is there.", int(status.connected))
        yield GaugeMetricFamily("bcd4rec_storage_pending", "Records that wait for the database.", status.pending)
        yield CounterMetricFamily("bcd4rec_storage_dropped", "Records that were not stored.", status.dropped)
