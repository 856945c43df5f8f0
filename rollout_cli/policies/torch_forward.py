"""Calling a plain torch network without what torch does around each of its modules. Torch is never imported here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

Call = Callable[[Any], Any]

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = tuple(f"_global{name}" for name in _HOOKS)
"""What `torch.nn.Module.__call__` looks into before it does no more than call `forward`."""


def forward_of(module: Any) -> Call:
    """Return what gives the same as `module(tensor)`, bit for bit: for a plain Sequential, its layers one by one.

    A module's `__call__` looks for hooks and a `Linear` for its parameters, both in Python, which takes as long as a
    small network's arithmetic. Hooks that are added later are called, and parameters that are replaced are used.

    Args:
        module: Any module. Where it is a Sequential, its layers stay the ones they are.
    """
    sequential = sys.modules["torch"].nn.Sequential
    if type(module) is not sequential:
        return _called(module)
    modules = list(_nested(module, sequential))
    places = [(sys.modules["torch.nn.modules.module"], _GLOBAL_HOOKS), *((one, _HOOKS) for one in modules)]
    hooks = [getattr(place, name, None) for place, names in places for name in names]
    if any(hook is None for hook in hooks) or not all(map(_is_torchs_own, modules)):
        return _called(module)
    layers = [_layer(one) for one in modules if type(one) is not sequential]

    def forward(tensor: Any) -> Any:
        if any(hooks):
            return module(tensor)
        for layer in layers:
            tensor = layer(tensor)
        return tensor

    return forward


def _called(module: Any) -> Call:
    call: Call = module
    return call


def _nested(module: Any, sequential: Any) -> Iterator[Any]:
    """Yield a module and, where it is a Sequential, those in it, in the order in which they are called."""
    yield module
    if type(module) is sequential:
        for child in module:  # Not its `children()`, which leaves out a layer that comes a second time.
            yield from _nested(child, sequential)


def _is_torchs_own(module: Any) -> bool:
    """Return whether a module is of a class of `torch.nn`, with nothing of its own in the way of its `forward`."""
    kind = type(module)
    own = getattr(sys.modules["torch"].nn, kind.__name__, None) is kind
    return own and "forward" not in vars(module) and getattr(module, "_compiled_call_impl", None) is None


def _layer(module: Any) -> Call:
    torch = sys.modules["torch"]
    if type(module) is not torch.nn.Linear:
        forward: Call = module.forward
        return forward
    linear, parameters = torch.nn.functional.linear, vars(module)["_parameters"]
    return lambda tensor: linear(tensor, parameters["weight"], parameters["bias"])
