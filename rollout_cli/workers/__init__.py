"""Layer 4: workers run one policy in one or more environments and record the assigned episodes.

They do not depend on other workers, messages or files.
"""
