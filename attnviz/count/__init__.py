"""What attention costs: parameters, caches, FLOPs and memory, counted from sizes or a config."""
