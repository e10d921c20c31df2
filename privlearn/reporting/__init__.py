"""Certificates, audits and curves, in text and pictures."""
