"""Datasets on disk: schema, segments and commits, writer, reader, verification and repair."""
