"""What ``--save`` and ``--json`` write: one module for each kind of file."""
