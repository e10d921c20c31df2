"""Source mutants of this package's mechanisms and learners, each with a check that sees it."""

from __future__ import annotations

import numpy as np
from faults.cases import ExactCase
from mutant_cases import (
    FITTED,
    LawsOfDomain,
    against_budget,
    against_own_loss,
    buffered,
    costs_more,
    drawn,
    fit,
    gaussian_sum,
    matrix_sum,
    overspends,
    policy_map,
    record,
    served,
    spends_late,
    stream,
    tree,
)
from mutation import Deferred, Edit, InspectionCase, Mutant

from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import BinaryTree, NoisySum, PrefixSum
from privlearn.noise import GaussianNoise, LaplaceNoise
from privlearn.rows.domains import Ball, Box

MUTANTS = (
    # Clipping
    Mutant(
        "no clip of a ball",
        "Records are not scaled into the ball.",
        (
            Edit(
                "privlearn.rows.domains:Ball.integers",
                "np.minimum(aim / norms, 1.0) / step\n"
                "            steps[tile] = part * factors[:, None]  # toward zero\n"
                "            drop(steps[tile], inside(steps[tile], radius, exponent))",
                "np.ones(len(part)) / step\n            steps[tile] = part * factors[:, None]",
            ),
            Edit(  # few numbers are shortened in Python
                "privlearn.rows.domains.balls:_few",
                "if not all([norm <= FAR for norm in norms]):  # NaN is not\n        return None",
                "return None",
            ),
        ),
        against_own_loss(gaussian_sum, record(9.0), record(-9.0)),
    ),
    Mutant(
        "no clip of a box",
        "Entries are not clamped.",
        (
            Edit(
                "privlearn.rows.domains:Box.integers",
                "part = np.clip(usable_rows(values[tile]), self.low, self.high)\n"
                "            steps[tile] = np.divide(part, grid.step, out=part)  # toward zero\n"
                "            np.clip(steps[tile], low, high, out=steps[tile])",
                "steps[tile] = values[tile] / grid.step",
            ),
        ),
        against_own_loss(
            lambda: NoisySum(Box(0, 1, 1), GaussianNoise(1.0)), record(9.0), record(0.0)
        ),
    ),
    Mutant(
        "no clip of NaN",
        "Rows that are no numbers are not set to 0.",
        (
            Edit(
                "privlearn.rows.domains.clipping:usable_rows",
                "return np.where(usable.reshape(-1, *(1,) * (values.ndim - 1)), values, 0.0)",
                "return values",
            ),
        ),
        LawsOfDomain(Box(-1.0, 1.0, 2)),
    ),
    Mutant(
        "clip of a matrix to the wrong power",
        "Factors are held to the square of the trace.",
        (
            Edit(
                "privlearn.rows.domains.matrices:_trace_in_steps",
                "radius_in_steps(domain.trace, grid)",
                "radius_in_steps(domain.trace**2, grid)",
            ),
        ),
        against_own_loss(matrix_sum, 9 * np.eye(2)[None, :1], 9 * np.eye(2)[None, 1:]),
    ),
    # Sensitivity
    Mutant(
        "the radius of a ball for its diameter",
        "Replace-one sensitivity is that of add-remove.",
        (
            Edit(
                "privlearn.rows.domains:Ball.sensitivity",
                "(2 if adjacency is Adjacency.REPLACE_ONE else 1)",
                "1",
            ),
        ),
        ExactCase(gaussian_sum),
    ),
    Mutant(
        "the published sensitivity of a Gram matrix",
        "√(2·trace) in place of √2·trace.",
        (
            Edit(
                "privlearn.rows.domains:PSDTrace.sensitivity",
                "self.trace * (math.sqrt(2) if",
                "math.sqrt(self.trace) * (math.sqrt(2) if",
            ),
        ),
        against_own_loss(matrix_sum, 9 * np.eye(2)[None, :1], 9 * np.eye(2)[None, 1:]),
    ),
    Mutant(
        "noise calibrated for add-remove",
        "A Gaussian sum under replace-one is calibrated for half its sensitivity.",
        (
            Edit(
                "privlearn.mechanisms.least_noise:gaussian_noise",
                'domain.sensitivity(adjacency, "l2")',
                'domain.sensitivity(Adjacency.ADD_REMOVE, "l2")',
            ),
        ),
        against_budget(
            lambda: NoisySum.calibrated(Ball(1.0, 1), ZCDP(1)), record(1.0), record(-1.0)
        ),
    ),
    # Noise
    Mutant(
        "σ × 0.95",
        "Gaussian noise is a twentieth too small.",
        (
            Edit(
                "privlearn.noise:GaussianNoise.draw",
                'doubles_of(pool, "normal", shape) * self.std',
                'doubles_of(pool, "normal", shape) * (0.95 * self.std)',
            ),
        ),
        drawn(GaussianNoise(1.0), size=1, samples=75_000),
    ),
    Mutant(
        "σ × 0.95, seen exactly",
        "The same, measured instead of sampled.",
        (
            Edit(
                "privlearn.noise:GaussianNoise.integers",
                'integers_of(pool, "normal", shape, bits)',
                'integers_of(pool, "normal", shape, bits) * 19 // 20',
            ),
        ),
        ExactCase(gaussian_sum),
    ),
    Mutant(
        "one-sided Laplace noise",
        "All signs are negative.",
        (
            Edit(
                "privlearn.noise.exact.pool:variates",
                "found ^= -(words & _ONE).view(np.int64)",
                "found ^= np.int64(-1)",
            ),
        ),
        drawn(LaplaceNoise(1.0), size=1, samples=2_000),
    ),
    Mutant(
        "the key reused",
        "Every spend takes its random words from the start of the same stream.",
        (
            Edit(
                "privlearn.noise:NoiseSource.pool",
                "Keystream() if self._words is None else self._words",
                "SeededWords(0)",
            ),
        ),
        against_own_loss(gaussian_sum, record(1.0), record(-1.0)),
    ),
    Mutant(
        "half the normal numbers twice",
        "The second half of the numbers repeats the first.",
        (
            Edit(
                "privlearn.noise.exact.pool:integers_of",
                "found = pool.floors(kind, math.prod(shape)).reshape(shape)",
                "found = np.resize(pool.floors(kind, -(-math.prod(shape) // 2)), shape)",
            ),
        ),
        against_own_loss(lambda: gaussian_sum(2), record(1.0, 0.0), record(0.0, 1.0)),
    ),
    # Tokens
    Mutant(
        "release without noise",
        "The receipt adds up and forgets the noise.",
        (
            Edit(
                "privlearn.contract.receipts:Receipt._noisy",
                "total + self._integers(total.shape, grid)",
                "total + 0 * self._integers(total.shape, grid)",
            ),
        ),
        against_own_loss(gaussian_sum, record(1.0), record(-1.0)),
    ),
    Mutant(
        "spend after release",
        "The spend is recorded when the token is retired, which a crash may prevent.",
        (
            Edit(
                "privlearn.contract.tokens:Token._recorded",
                "self._issuer.record_spend(self, spend, loss)",
                "self._issuer._log.state.accounts[self.id]",
            ),
            Edit(
                "privlearn.contract.receipts:_Spent._retire",
                "self._done = True\n",
                "self._done = True\n"
                "    loss = self._spend.loss(self._token.adjacency)\n"
                "    self._issuer.record_spend(self._token, self._spend, loss)\n",
            ),
        ),
        InspectionCase(spends_late),
    ),
    Mutant(
        "a token that pays for anything",
        "The price is compared with what the token holds neither by the token nor by the ledger.",
        (
            Edit(
                "privlearn.contract.tokens:Token._check_price",
                "not self.budget.covers(price)",
                "False",
            ),
            Edit(
                "privlearn.accountants.charged:Account.check_holds",
                "self.budget is not price.budget and not self.budget.covers(price.budget)",
                "False",
            ),
        ),
        InspectionCase(overspends),
    ),
    # Streams
    Mutant(
        "one noise for a block of a stream",
        "All sums of a block share the first one's noise.",
        (
            Edit(
                "privlearn.mechanisms.running_sums:_IntegerSums.after",
                "self._ahead.next(len(values))",
                "self._ahead.next(len(values))[:1]",
            ),
        ),
        against_own_loss(buffered, stream(16, 3), -stream(16, 3)),
    ),
    Mutant(
        "depth off by one",
        "A tree forgets one of the nodes that each record is in.",
        (
            Edit(
                "privlearn.mechanisms.binary_tree:BinaryTree._nodes",
                "nodes = 0",
                "nodes = -1",
            ),
        ),
        against_own_loss(tree, record(1.0).repeat(2, axis=0) * [[1], [0]], -stream(2), 4_000),
    ),
    Mutant(
        "log T forgotten",
        "A stream is calibrated as a single sum.",
        (
            Edit(
                "privlearn.mechanisms.prefix_sums:PrefixSum.calibrated",
                "least_std(domain, budget, adjacency, gain, norm)",
                "least_std(domain, budget, adjacency, lambda std: 1.0, 1.0)",
            ),
        ),
        against_budget(
            lambda: PrefixSum.calibrated(Ball(1.0, 1), ZCDP(1), factorization=BinaryTree(64)),
            stream(64),
            -stream(64),
        ),
    ),
    Mutant(
        "coefficients in the wrong order",
        "What the noise of a stream is added to is not the C that is priced, within a block.",
        (
            Edit(
                "privlearn.mechanisms.toeplitz:_data_matrices",
                "below[r - 1 :: -1]",
                "below[:r]",
            ),
        ),
        against_own_loss(buffered, stream(16), -stream(16)),
    ),
    # Objective perturbation
    Mutant(
        "a tilt too small",
        "The objective is tilted by an eighth of the noise.",
        (
            Edit(
                "privlearn.mechanisms.objective_perturbation:ObjectivePerturbation._minimiser",
                "self.ridge, tilt)",
                "self.ridge, tilt / 8)",
            ),
        ),
        against_own_loss(fit, *FITTED, samples=600),
    ),
    Mutant(
        "a shift too cheap",
        "The Gaussian part of the price of objective perturbation is an eighth of what it is.",
        (
            Edit(
                "privlearn.losses.minimizer:MinimizerLoss._shift",
                "return c * c / 2",
                "return c * c / 16",
            ),
        ),
        InspectionCase(costs_more),
    ),
    # Learners
    Mutant(
        "a bad record skipped",
        "A learner leaves out users whose data it cannot use.",
        (
            Edit(
                "privlearn.learners.served:Served._observe",
                "self._take(rows)",
                "self._null_answers[0] or self._take(rows)",
            ),
        ),
        served("nan"),
    ),
    Mutant(
        "messages in the public state",
        "What is told to single users is saved for everybody.",
        (
            Edit(
                "privlearn.learners.batches:BatchLearner.public_state",
                '"clock": self._public_clock(),',
                '"clock": self.clock_, "messages": self.private_messages_,',
            ),
        ),
        served("nan"),
    ),
    Mutant(
        "a bonus centred over the batch",
        "What a user is shown depends on who is served together with them.",
        (
            Edit(
                "privlearn.learners.serving:optimistic_items",
                "np.add.reduce(bonus, axis=1, keepdims=True) / bonus.shape[1]",
                "np.add.reduce(bonus, axis=0, keepdims=True) / bonus.shape[0]",
            ),
        ),
        Deferred(policy_map),
    ),
)
"""Every fault that was planted in this package."""
