"""Rows and how they are shown: schema, formats, gates, baselines, environment, plots."""
