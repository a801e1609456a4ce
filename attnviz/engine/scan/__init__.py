"""All ablations in one pass: the batch grows by a copy a head, in bands that fit the memory."""
