"""Generalized linear bandits under a rule: the price of a person, pooled visits, who comes."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest

from privlearn.accountants import CentralAccountant, JointAccountant
from privlearn.learners import OnePassNewtonGLM
from privlearn.learners.one_pass_newton_glm import mean_of_lines
from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms.batched_sums import BatchedPrefixSum
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.rows.domains import Array, GradientHessian
from privlearn.values.adjacency import Adjacency
from privlearn.values.participation import Participation as Rule

RULES = {
    "once": Rule(1),
    "pooled, once": Rule(1, pooled=True),
    "pooled, three times": Rule(3, pooled=True),
    "once a block": Rule(3, per_batch=1),
    "twice a block": Rule(4, per_batch=2),
    "twice anywhere": Rule(2),
    "apart": Rule(3, apart=5),
}
THETA = np.array([3.2, -2.4])
EXACT = set(RULES) - {"twice a block", "apart"}
"""Where blocks do not matter, or visits are one a block; else the price is an upper bound."""


def learner(**changes: Any) -> OnePassNewtonGLM:
    return OnePassNewtonGLM(4, 2, **{"first_batch": 3, "longest_batch": 6, **changes})


def joint(rule: Rule, users: int, rho: str = "1", seed: int = 0, **more: Any) -> Any:
    return JointAccountant(
        ZCDP(rho),
        users=range(users),
        noise=NoiseSource.simulation(seed),
        people=People.memory(rule),
        **more,
    )


def rows_of(rule: Rule, batches: list[range], visits: tuple[int, ...]) -> Array | None:
    """How many rows of a person are in each batch; None if the rule does not learn all visits."""
    if any(b - a < rule.apart for a, b in pairwise(visits)):
        return None
    rows = np.array([sum(slot in batch for slot in visits) for batch in batches])
    if rule.pooled:
        rows = np.minimum(rows, 1)
    return None if rows.max() > (rule.per_batch or rule.most) else rows


@pytest.mark.parametrize("relation", [Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT])
@pytest.mark.parametrize("name", RULES)
def test_a_person_with_all_visits_pays_the_budget_and_no_more(
    name: str, relation: Adjacency
) -> None:
    """Every set of slots that the rule learns, against the law of all that is released.

    Released are A·x + B·z; x moves by v·D, z has independent entries of variance σ².
    """
    pattern: Any = "public" if relation is Adjacency.REPLACE_ONE else "private"
    rule = replace(RULES[name], pattern=pattern)
    made = learner().start(joint(rule, 14, adjacency=relation))
    mechanism = made._sums._stream.sums
    assert isinstance(mechanism, BatchedPrefixSum)
    batches = made.batches_
    n = len(batches)
    mixed = made._sums._mixed / mechanism.noise_std**2  # of the sums over each batch, BBᵀ for A = I
    reach = mechanism.domain.sensitivity(relation) / mechanism.noise_std
    worst = 0.0
    for k in range(1, rule.most + 1):
        for visits in combinations(range(14), k):
            rows = rows_of(rule, batches, visits)
            if rows is not None:
                worst = max(worst, float(rows @ np.linalg.solve(mixed, rows)))
    paid = reach**2 * worst / 2
    assert n > 3
    assert paid <= 1 + 1e-9
    assert paid > (1 - 1e-6 if name in EXACT else 0.3)


def test_pooled_visits_are_one_contribution_that_the_domain_does_not_scale() -> None:
    rng = np.random.default_rng(0)
    own = rng.normal(size=(5, 1, 4))
    own[:, :, :2] /= 1.2 * np.linalg.norm(own[:, :, :2], axis=2, keepdims=True)
    own[2, 0, 2] = np.nan
    made = mean_of_lines(own)
    gradient, hessian, length = np.zeros(2), np.zeros((2, 2)), 0.0
    for *x, s, h in own[[0, 1, 3, 4], 0]:
        gradient += np.clip(s, -1, 1) * np.array(x)
        hessian += np.clip(h, 0, 1) * np.outer(x, x)
        length += float(np.linalg.norm(x))
    domain = GradientHessian(2)
    found = domain.decode(domain.clip(made[None]))[0]
    np.testing.assert_allclose(found, np.vstack([gradient, hessian]) / length, rtol=1e-10)
    one = domain.decode(domain.clip(own[:2]))[0]
    np.testing.assert_allclose(domain.decode(domain.clip(mean_of_lines(own[:1])[None]))[0], one)
    assert not domain.clip(mean_of_lines(own[2:3])[None]).any()


def market(seed: int, people: int, times: int) -> tuple[Array, Array, list[int]]:
    """Slates of people who come several times, and what they would answer."""
    rng = np.random.default_rng(seed)
    who = rng.permutation(np.repeat(np.arange(people), times)).tolist()
    slates = rng.normal(size=(len(who), 4, 2))
    slates /= np.linalg.norm(slates, axis=2, keepdims=True)
    chances = 1 / (1 + np.exp(-slates @ THETA))
    return slates, (rng.random((len(who), 4)) < chances).astype(float), who


def play(made: Any, slates: Array, rewards: Array, shown: list[int], ids: Any) -> None:
    def respond(own: Any, actions: Any) -> Array:
        shown.extend(actions.tolist())
        return np.array(rewards[own.private[:, 0].astype(int), actions])

    made.play(slates, respond, private=np.arange(float(len(slates)))[:, None], people=ids)


@pytest.mark.parametrize("name", ["pooled, three times", "once a block", "apart"])
def test_blocks_are_the_same_as_one_visit_at_a_time(name: str) -> None:
    slates, rewards, who = market(0, 12, 5)
    ids: list[Any] = [None if slot == 7 else person for slot, person in enumerate(who)]
    states, shown = [], list[int]()
    for way in ("play", "one by one", "logged"):
        made = learner()
        if way == "logged":
            book = CentralAccountant(
                ZCDP(1),
                users=range(60),
                noise=NoiseSource.simulation(0),
                people=People.memory(RULES[name]),
            )
            made.start(book)
            picked = slates[np.arange(60), shown], rewards[np.arange(60), shown]
            made.partial_fit(*picked, people=ids)
        elif way == "play":
            made.start(joint(RULES[name], 60))
            play(made, slates, rewards, shown, ids)
        else:
            made.start(joint(RULES[name], 60))
            for slate, reward, person in zip(slates, rewards, ids, strict=True):
                action = made.select(slate, person=person)
                made.observe(reward[action])
        states.append(made.theta_)
        assert made.private_messages_ == [(7, "no id says who came; your record does not count")]
    assert np.array_equal(states[0], states[1])
    assert np.array_equal(states[0], states[2])
    assert states[0].any()


def test_pooled_visits_of_several_actions_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"per_action with Participation.*use a rule with per_bat"):
        learner(per_action=True).start(joint(Rule(1, pooled=True), 30))
    made = learner(per_action=True).start(joint(Rule(2, per_batch=1), 30))
    contexts = np.random.default_rng(0).normal(size=(30, 2))
    made.play(contexts, lambda own, arms: np.ones(len(arms)), people=[0, 1, 2] * 10)
    assert made.theta_.any()


def test_a_rule_beats_a_group() -> None:
    """Four hundred people who come five times each."""
    lost: dict[bool, list[float]] = {True: [], False: []}
    for seed in range(3):
        for ruled in lost:
            slates, rewards, who = market(seed, 400, 5)
            rule = Rule(1, pooled=True, pattern="public")
            book = JointAccountant(
                ZCDP("1/2" if ruled else "1/50"),
                users=range(2000),
                noise=NoiseSource.simulation(seed),
                people=People.memory(rule) if ruled else None,
            )
            shown: list[int] = []
            made = OnePassNewtonGLM(4, 2, random_state=seed).start(book)
            play(made, slates, rewards, shown, who if ruled else None)
            means = 1 / (1 + np.exp(-slates @ THETA))
            lost[ruled].append(float((means.max(1) - means[np.arange(2000), shown]).sum()))
    assert np.mean(lost[True]) < 0.7 * np.mean(lost[False])
