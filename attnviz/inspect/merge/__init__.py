"""``attnviz merge``: the result of a corpus from the files of its shards."""
