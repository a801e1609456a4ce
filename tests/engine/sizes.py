"""Other sizes than a device's own, to run what is cut into pieces on texts of a few tokens."""

from dataclasses import replace

from attnviz.engine import device_sizes


def set_sizes(monkeypatch, **changed):
    """Change some fields of ``DeviceSizes`` for every device until the end of the test."""
    others = {name: replace(own, **changed) for name, own in device_sizes.OF.items()}
    monkeypatch.setattr(device_sizes, "OF", others)
