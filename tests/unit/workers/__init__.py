"""Tests of workers, recorders and the worker factory."""
