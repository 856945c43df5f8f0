"""How objects show themselves in a notebook: a table of facts."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from rollout_cli.sources.untrusted import printable


def html_table(title: str, facts: Mapping[str, object]) -> str:
    """Return facts by their names as an HTML table; values may be the strings of strangers."""
    rows = "".join(f"<tr><th>{_safe(name)}</th><td>{_safe(value)}</td></tr>" for name, value in facts.items())
    return f"<table><caption>{_safe(title)}</caption><tbody>{rows}</tbody></table>"


def shape_of(tree: object) -> str:
    """Describe the arrays of a tree, such as `float32 (120, 4)`; nested dictionaries by their keys."""
    if isinstance(tree, Mapping):
        return ", ".join(f"{name}: {shape_of(leaf)}" for name, leaf in tree.items())
    if isinstance(tree, tuple):
        return f"({', '.join(map(shape_of, tree))})"
    return f"{getattr(tree, 'dtype', type(tree).__name__)} {getattr(tree, 'shape', '')}".rstrip()


def _safe(value: object) -> str:
    return escape(printable(str(value)))
