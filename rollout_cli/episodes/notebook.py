"""How objects show themselves in a notebook: a table of facts."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from rollout_cli.sources.untrusted import printable


def html_table(title: str, facts: Mapping[str, object]) -> str:
    """Return facts by name as an HTML table, without empty ones; strings may come from strangers."""
    rows = [
        f'<tr><th style="text-align: left">{_safe(name)}</th><td style="text-align: left">{_safe(value)}</td></tr>'
        for name, value in facts.items()
        if str(value)
    ]
    return f"<table><caption>{_safe(title)}</caption><tbody>{''.join(rows)}</tbody></table>"


def shape_of(tree: object) -> str:
    """Describe the arrays of a tree, such as `float32 (120, 4)`; nested dictionaries by their keys."""
    if isinstance(tree, Mapping):
        return ", ".join(f"{name}: {shape_of(leaf)}" for name, leaf in tree.items())
    if isinstance(tree, tuple):
        return f"({', '.join(map(shape_of, tree))})"
    return f"{getattr(tree, 'dtype', type(tree).__name__)} {getattr(tree, 'shape', '')}".rstrip()


def _safe(value: object) -> str:
    return escape(printable(str(value)))
