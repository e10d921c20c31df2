"""What mechanisms, accountants and learners know of each other: spends, tokens, leases, plans."""
