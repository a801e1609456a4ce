"""Measures of attention weights as functions of arrays."""
