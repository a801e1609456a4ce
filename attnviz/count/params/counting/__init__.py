"""Counts parameters, cache, operations and memory of an architecture as exact integers."""
