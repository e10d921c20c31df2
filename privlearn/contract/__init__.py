"""What mechanisms, accountants and learners know of each other: spends, tokens, receipts, releases, leases, plans."""
