"""Fixed token trees in the syntax of vLLM's removed option ``speculative_token_tree``."""

from __future__ import annotations

import ast
from collections.abc import Iterable

TokenTree = tuple[tuple[int, ...], ...]

_SYNTAX = "expected a list of paths of child ranks such as '[(0,), (1,), (0, 0)]'"


def parse_token_tree(text: str | Iterable[Iterable[int]]) -> TokenTree:
    """The paths of a token tree, breadth first, from a Python-literal string or a list.

    A path names a node by child ranks from the root: (0, 1) is the second-best child of the
    root's best child. Raises ValueError for what is no tree, naming the path and the fix.

        >>> parse_token_tree("[(0,), (0, 0), (1,)]")
        ((0,), (1,), (0, 0))
        >>> parse_token_tree("[(0, 0)]")
        Traceback (most recent call last):
        ValueError: token tree path (0, 0) has no parent: add (0,)
    """
    if isinstance(text, str):
        try:
            paths = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
            raise ValueError(f"token tree {text!r} is not a Python literal: {_SYNTAX}") from error
    else:
        paths = text
    try:
        tree = tuple(sorted((tuple(path) for path in paths), key=lambda path: (len(path), path)))
    except TypeError as error:
        raise ValueError(f"token tree {text!r} is not a list of paths: {_SYNTAX}") from error
    check_token_tree(tree)
    return tree


def check_token_tree(tree: TokenTree) -> None:
    """Raise ValueError unless ``tree`` is a non-empty, parent-closed set of distinct paths."""
    if not tree:
        raise ValueError(f"token tree is empty: {_SYNTAX}")
    known: set[tuple[int, ...]] = {()}
    for path in sorted(tree, key=len):
        if not path:
            raise ValueError("token tree path () is the root, which is always there: drop it")
        if not all(type(rank) is int and rank >= 0 for rank in path):
            raise ValueError(f"token tree path {path} must hold child ranks, integers >= 0")
        if path in known:
            raise ValueError(f"token tree path {path} is listed twice: drop one")
        if path[:-1] not in known:
            raise ValueError(f"token tree path {path} has no parent: add {path[:-1]}")
        known.add(path)
