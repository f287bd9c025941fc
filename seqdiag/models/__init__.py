"""The subjects: our own and a user's module."""
