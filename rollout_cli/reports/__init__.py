"""Views of a dataset: plots, video frames, and the HTML report."""
