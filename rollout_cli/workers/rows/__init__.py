"""The engine of Python environments: a row is one environment, and its step is written once for any n."""
