"""Layer 4: workers run one policy in one or more environments and record the episodes that they are given.

They know nothing of other workers, messages or files.
"""
