"""Closed forms, without torch."""
