"""Episodes as values: spaces as leaves, infos as columns, chunks on their way, and the public EpisodeBatch."""
