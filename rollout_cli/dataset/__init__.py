"""The dataset on disk: schema, segments and commits, writer, reader, verify and repair."""
