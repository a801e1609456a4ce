"""What attention costs: parameters, caches, FLOPs and memory, counted from a shape or a config."""
