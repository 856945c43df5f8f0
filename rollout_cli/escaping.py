"""Text of others that is safe to show: names, paths and messages that come from environments, policies and files.

All that reaches a terminal, or the title of a process, goes through `printable`. Markup such as "[red]" needs no
escape, because no text of others is ever read as markup.
"""

from __future__ import annotations


def printable(text: str, *, keep: str = "") -> str:
    r"""Return the text with control characters written as escapes, so that no name can drive a terminal.

    Among these are all that change the order or the place of what is shown: line breaks, and marks of direction.

    Args:
        text: Any text, such as an environment's name.
        keep: Characters to leave as they are, such as "\n" in a traceback.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode() for char in text
    )


def one_line(text: str) -> str:
    """Return the text on one line, its line breaks as spaces, and otherwise as `printable` has it."""
    return printable(" ".join(text.splitlines()))


def text_of(error: BaseException) -> str:
    """Return the text of an error, also of one whose own `__str__` raises."""
    try:
        return str(error)
    except Exception as another:  # noqa: BLE001 - it is the user's code, and may raise anything
        return f"(it has no text: its __str__ raised {type(another).__name__})"
