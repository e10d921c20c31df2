"""The experiments of Cho and Sun."""
