"""Exporters: datasets in the formats of other tools, one module per format."""
