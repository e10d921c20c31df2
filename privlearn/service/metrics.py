"""Metrics for Prometheus: functions of what is public, and of refusals that concern no data.

What is not here is left out on purpose: counts of answers and of open offers (their difference to
the offers says who never answered), null records, quotas, persons, sizes of the registry or the
store of rows, and the CPU time or memory of the owner.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from privlearn.service.counters import Counters


@dataclass(frozen=True, slots=True)
class Facts:
    """Public numbers of a service."""

    software: str
    learner: str
    clock: int
    users: int
    entries: int
    budget: Mapping[str, float]
    """Cap, reserved and remaining, in the accountant's currency."""
    currency: str
    serving: bool
    started: float
    """When the owner began, in seconds since 1970."""


def exposition(facts: Facts, counters: Counters) -> tuple[str, str]:
    """The text that Prometheus reads, and its media type."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

    class _Public:
        def collect(self) -> Iterator[Any]:
            yield from _families(facts, counters)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Public())
    return generate_latest(registry).decode(), CONTENT_TYPE_LATEST


def _families(facts: Facts, counters: Counters) -> Iterator[Any]:
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        InfoMetricFamily,
    )

    yield InfoMetricFamily(
        "privlearn",
        "Version and learner.",
        {"version": facts.software, "learner": facts.learner, "currency": facts.currency},
    )
    yield GaugeMetricFamily("privlearn_serving", "1 while offers are made.", float(facts.serving))
    yield GaugeMetricFamily(
        "privlearn_owner_start_time_seconds", "When the owner began.", facts.started
    )
    yield GaugeMetricFamily("privlearn_users", "Arrival indices in all.", facts.users)
    yield CounterMetricFamily("privlearn_offers", "Arrival indices given out.", facts.clock)
    yield CounterMetricFamily("privlearn_ledger_entries", "In the ledger.", facts.entries)
    budget = GaugeMetricFamily(
        "privlearn_budget", "Of the most charged user, rounded.", labels=["part"]
    )
    for part, amount in facts.budget.items():
        budget.add_metric([part], amount)
    yield budget
    refused = CounterMetricFamily(
        "privlearn_refused_requests",
        "Requests that were not done, but those with answers.",
        labels=["code"],
    )
    for code, n in sorted(counters.refusals.items()):
        refused.add_metric([code], n)
    yield refused
    buckets, total = counters.histogram()
    yield HistogramMetricFamily(
        "privlearn_offer_seconds",
        "From a request to its offer, in steps of http.reply_step.",
        buckets=buckets,
        sum_value=total,
    )
