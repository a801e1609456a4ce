"""Scan all ablations in one pass, whose batch grows by a copy for each, in chunks that fit."""
