"""Numbers for Prometheus: what the server did since it started, and response rates as the database counts them."""

import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector

from bcd4rec.evaluation.canary import Decision
from bcd4rec.serving.storage.records import ORGANIC, ArmCounts, StoreStatus

BUCKETS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.007, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0)
CONNECTED = "1 if the database is there."
PENDING, DROPPED = "Records that wait for the database.", "Records that were not stored."
DECISIONS: tuple[Decision, ...] = get_args(Decision)


class Metrics:
    """`worker`: the number of this process among several, whose numbers are told together.

    They are then kept in files of PROMETHEUS_MULTIPROC_DIR, so that what a process counted outlives it.
    """

    def __init__(
        self, arms: Callable[[], list[ArmCounts]], status: Callable[[], StoreStatus], worker: int | None = None
    ):
        self.registry = CollectorRegistry()
        own = self.registry if worker is None else CollectorRegistry()
        self._latency = Histogram(
            "bcd4rec_request_seconds", "Time to answer.", ["route"], buckets=BUCKETS, registry=own
        )
        self._requests = Counter("bcd4rec_requests", "Requests by status.", ["route", "status"], registry=own)
        self.unknown = Counter("bcd4rec_unknown_items", "Items that the policy does not know.", registry=own)
        self.unknown_responses = Counter(
            "bcd4rec_unknown_responses", "Responses in sessions that the policy does not know.", registry=own
        )
        self.unmatched = Counter("bcd4rec_unmatched_feedback", "Responses to what was not recommended.", registry=own)
        self.unlogged = Counter("bcd4rec_unlogged_impressions", "Slates that were shown and not stored.", registry=own)
        self._recommended = Counter(
            "bcd4rec_recommendations", "Slates by policy version.", ["policy", "arm"], registry=own
        )
        self.registry.register(_Stored(arms))
        self._status = status
        self._storage: _StorageOfAll | None = None
        self._own_requests: Counter | None = None
        if worker is None:
            self.registry.register(_Storage(status))
        else:
            self._storage = _StorageOfAll(own)
            requests = Counter("bcd4rec_worker_requests", "Requests by worker.", ["worker"], registry=own)
            self._own_requests = requests.labels(str(worker))
            MultiProcessCollector(self.registry)  # type: ignore[no-untyped-call]

        # Finding a labelled counter takes longer than counting, so they are kept.
        self._latency_of = lru_cache(maxsize=1000)(self._latency.labels)
        self._requests_of = lru_cache(maxsize=1000)(self._requests.labels)
        self._recommended_of = lru_cache(maxsize=1000)(self._recommended.labels)

    def request(self, route: str, status: int, seconds: float) -> None:
        self._latency_of(route).observe(seconds)
        self._requests_of(route, str(status)).inc()
        if self._own_requests is not None:
            self._own_requests.inc()

    def recommended(self, policy: str, arm: str) -> None:
        self._recommended_of(policy, arm).inc()

    def note_storage(self) -> None:
        """How the store is, for whichever worker is asked for it."""
        if self._storage is not None:
            self._storage.note(self._status())

    def text(self) -> bytes:
        self.note_storage()
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

    def __init__(self, arms: Callable[[], list[ArmCounts]]):
        self._arms = arms

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


class _Storage:
    """How this process's store is at the moment."""

    def __init__(self, status: Callable[[], StoreStatus]):
        self._status = status

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        status = self._status()
        yield GaugeMetricFamily("bcd4rec_storage_connected", CONNECTED, int(status.connected))
        yield GaugeMetricFamily("bcd4rec_storage_pending", PENDING, status.pending)
        yield CounterMetricFamily("bcd4rec_storage_dropped", DROPPED, status.dropped)


class _StorageOfAll:
    """The same of several workers together: each of them notes now and then how its own store is."""

    def __init__(self, own: CollectorRegistry):
        self._connected = Gauge("bcd4rec_storage_connected", CONNECTED, registry=own, multiprocess_mode="livemin")
        self._pending = Gauge("bcd4rec_storage_pending", PENDING, registry=own, multiprocess_mode="livesum")
        self._dropped, self._told = Counter("bcd4rec_storage_dropped", DROPPED, registry=own), 0
        self._noting = threading.Lock()

    def note(self, status: StoreStatus) -> None:
        with self._noting:
            self._connected.set(int(status.connected))
            self._pending.set(status.pending)
            self._dropped.inc(max(status.dropped - self._told, 0))
            self._told = max(status.dropped, self._told)
