"""Laws that every mechanism, domain and row function must keep."""
