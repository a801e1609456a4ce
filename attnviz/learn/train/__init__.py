"""``attnviz train``: a small language model of the own attention, trained, scored and saved."""
