"""The bytes a model keeps between decode steps: layouts, readers of configs, engines."""
