"""Accounts of ours under the code of other libraries: one module each, imported when it is used."""
