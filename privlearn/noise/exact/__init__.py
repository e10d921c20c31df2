"""Exact sampling: integers ⌊2^k Z⌋ of continuous noise Z, with no rounding in their law.

The room's parts, and why they are right (docs/proofs.md, "Exact sampling", has the whole argument):

`tails`     V = tail(z) for every family, enclosed between integers: what ⌊2^k Z⌋ is defined by
`slow`      ⌊2^k f(V)⌋, f the inverse of tail, for lazily extended bits of V: always right
`tables`    polynomials for ⌊2^40 f(V)⌋ with proved error bounds, shipped under a SHA-256;
            `tests/helpers/table_building.py` makes them and proves the bounds
`fast`      the floor from the table where its error bound makes it certain, else `slow`
`pool`      uniform words, from AES-256 in counter mode or, for simulations, from a seed; the
            variates of one spend, drawn from them after it, and never twice
`caps`      points of caps, by rejection from exact variates; numbers between bounds, in doubles
            and, where these do not decide, in integers
`cap_rows`  local reports about these points, in steps of a grid
`cap_mass`  the mass of a cap and logarithms between rational bounds, for prices
`near`      variates to 2^−58, many at once
`real_powers` x^p and norms for doubles p, by products and square roots, with bounds
`powers`    vectors of density ∝ exp(−‖z‖²/2), ‖·‖ the norm of ℓp, from these variates
"""
