"""What several test modules share: environments, policies, processes, datasets."""
