"""Record, freeze and replay: what a learner releases must not tell one user of another."""
