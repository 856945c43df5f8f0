"""The version of the package: the one place, which the build reads too."""

__version__ = "0.1.0"
