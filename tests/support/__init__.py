"""Environments and policies that the tests share."""
