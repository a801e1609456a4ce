"""``heads --image FILE`` and ``patterns --images DIR``: where heads look on pictures."""
