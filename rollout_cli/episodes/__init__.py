"""Episodes as values: spaces as leaves, infos as columns, chunks under way, and the public EpisodeBatch."""
