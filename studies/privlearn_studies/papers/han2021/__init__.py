"""The experiments of Han et al. (2021)."""
