"""Tests of plans, state machines, buffers and channels."""
