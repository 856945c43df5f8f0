"""The main job from end to end, in processes, on disk."""
