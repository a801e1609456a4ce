"""The manual, which ships with the package."""
