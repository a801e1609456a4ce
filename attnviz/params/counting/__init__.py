"""What a design costs: parameters, cache, arithmetic and memory, as exact integers."""
