"""Looking at a dataset: plots, rendered episodes, and the HTML report."""
