"""What an architecture costs: parameters, cache, arithmetic and memory, as exact integers."""
