"""What a dataset claims held against what its files hold, and what is whole of a damaged one made a dataset again.

`verify.py` and `repair.py` are the two uses; each of the other modules looks at one kind of claim. A run that collects
loads nothing of it.
"""
