"""Naming heads: what every head does, scored, held against a base rate, labelled."""
