"""The exporters: one conformance suite over all formats, and what the command does about them."""
