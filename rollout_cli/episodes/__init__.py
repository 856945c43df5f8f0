"""Episodes as values: spaces as leaves, infos as columns, chunks, and the public EpisodeBatch."""
