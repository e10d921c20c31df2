"""The experiments of Han et al. (2022)."""
