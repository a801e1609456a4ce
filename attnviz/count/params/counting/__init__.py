"""Counts the cost of an architecture as exact integers: parameters, cache, arithmetic, memory."""
