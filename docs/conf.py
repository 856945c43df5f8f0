"""The documentation site: `sphinx-build -W -n docs build/site`. The pages stay Markdown that reads well by itself."""

from __future__ import annotations

import re
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

project = "rollout"
author = "the rollout authors"
release = version_of("rollout-collect")
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["README.md"]  # The index on GitHub; here it is index.md.

html_theme = "furo"
html_title = f"rollout {release}"
html_copy_source = False
html_show_copyright = False

myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline", "colon_fence"]
nb_execution_mode = "off"  # A test executes the notebooks, and the pages show what they stored.

default_role = "code"  # In docstrings too, backticks are code.
nitpick_ignore_regex = [
    # Other packages' objects: their sites are not asked, so that the build needs no network.
    (r"py:.*", r"(abc|collections|enum|gymnasium|np|npt|numpy|os|pathlib|pyarrow|ray|torch|typing)\..*"),
    (r"py:class", r"spaces\.Space"),
    # Types in signatures that are not public.
    (r"py:class", r"rollout_cli\.(dataset|exporters|progress|run|samplers|workers)\..*"),
    (
        r"py:class",
        r"Env|EpisodeRules|Path|PinRules|RecordingWriter|StartMethod|VectorEnv|WorkerContext|WorkerSetup",
    ),
]
autodoc_typehints = "description"
autodoc_typehints_format = "short"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False

_ROOT = Path(__file__).parents[1]
_OUTSIDE = {
    "architecture": "ARCHITECTURE.md",
    "benchmarks": "benchmarks/README.md",
    "changelog": "CHANGELOG.md",
    "contributing": "CONTRIBUTING.md",
    "readme": "README.md",
    "security": "SECURITY.md",
}
"""By page, files of the repository that are outside of this folder; the page shows the file."""


def _show_outside(app: object, docname: str, source: list[str]) -> None:
    """Put a file of the repository in place of its page, and make links lead to the pages."""
    text = source[0]
    if docname in _OUTSIDE:
        text = (_ROOT / _OUTSIDE[docname]).read_text(encoding="utf-8").replace("](../docs/", "](docs/")
        for page, file in _OUTSIDE.items():
            text = text.replace(f"]({file}", f"]({page}.md")
        text = text.replace("](docs/README.md", "](index.md").replace("](docs/", "](")
        # A folder is not a page.
        text = re.sub(r"\[([^\]]+)\]\(sample_configs/?\)", r"\1", text)
    elif docname == "index":  # On GitHub, README.md is the index.
        text = (_ROOT / "docs" / "README.md").read_text(encoding="utf-8") + text
    here = "../" * docname.count("/")
    for page, file in _OUTSIDE.items():
        text = text.replace(f"](../{here}{file}", f"]({here}{page}.md")
    if not docname.startswith("use/"):  # It has a README.md itself.
        text = text.replace("](README.md", "](index.md")
    source[0] = text


def _escape_stars(app: object, what: str, name: str, item: object, options: object, lines: list[str]) -> None:
    """Show shapes such as `(T, *shape)` as they are: a star would start an emphasis."""
    lines[:] = [re.sub(r"(?<![\w*`\\])\*(?=\w)", r"\\*", line) for line in lines]


def _link_error(app: Any, env: Any, node: Any, content: Any) -> Any:
    """Link the errors that docstrings name, which are in one module."""
    if node.get("reftype") != "exc":
        return None
    target = f"rollout_cli.errors.{node['reftarget']}"
    domain = env.get_domain("py")
    return domain.resolve_xref(env, node["refdoc"], app.builder, "exc", target, node, content)


def setup(app: Any) -> None:
    """Register the handlers with Sphinx."""
    app.connect("source-read", _show_outside)
    app.connect("autodoc-process-docstring", _escape_stars)
    app.connect("missing-reference", _link_error)
