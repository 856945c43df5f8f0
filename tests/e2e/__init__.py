"""The main job from end to end: the command, processes, files."""
