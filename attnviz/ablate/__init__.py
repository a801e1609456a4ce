"""The views of what is lost when heads are removed."""
