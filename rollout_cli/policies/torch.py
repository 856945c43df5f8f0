"""TorchPolicy: a `torch.nn.Module` as a policy. Torch is never imported here: a module's owner loaded it."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import numpy as np

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.spaces import Array, Tree
from rollout_cli.errors import PolicyError, PolicyLoadError
from rollout_cli.policies.noise import RowNoise
from rollout_cli.policies.outputs import NetworkPolicy, check_shape
from rollout_cli.policies.policy import named, own_method


def is_torch_module(candidate: Any) -> bool:
    """Return whether `candidate` is a `torch.nn.Module`, without importing torch."""
    module_type = getattr(getattr(sys.modules.get("torch"), "nn", None), "Module", None)
    return isinstance(module_type, type) and isinstance(candidate, module_type)


class TorchPolicy(NetworkPolicy):
    """Calls a module with a batch of observations, in eval mode and without gradients.

    The module gets a tree of tensors (n, *shape) on its own device: numbers of a Box in its parameters'
    floating dtype, those of other spaces as they are. Its output decides:

    - a `torch.distributions.Distribution` is sampled; its mode where deterministic;
    - for a Discrete space, a tensor (n, number of actions), or a Categorical distribution, gives logits: an
      action is drawn from their softmax, or is the argmax where deterministic;
    - for a Box, a tensor (n, *shape) is the action; one of integers is it for every space.

    What a row draws follows from its own seed, but for distributions that `_sample` does not know.

    A module that is `row_by_row` acts on a batch of one row alone, since it keeps a state, draws from torch's
    generator, or knows no other batch. Its own `reset`, where it has one, begins each episode.
    """

    def __init__(
        self, wrapped: Any, env_spec: EnvSpec, *, deterministic: bool, row_by_row: bool = False
    ) -> None:
        super().__init__(wrapped, env_spec, deterministic=deterministic)
        if any(leaf.kind == "text" for leaf in self._observations.leaves):
            raise PolicyLoadError(
                "a torch module cannot take text", hint="wrap it in a policy with get_action"
            )
        reset = own_method(wrapped, "reset")
        if reset is not None and not row_by_row:
            raise PolicyLoadError(
                "the torch module has a reset, so it keeps a state between steps",
                hint="give it get_action and get_actions, which say how the state follows its episodes",
            )
        self._torch: Any = sys.modules["torch"]
        if getattr(wrapped.forward, "__func__", None) is self._torch.nn.Module.forward:
            verb = "get_action_and_value" if hasattr(wrapped, "get_action_and_value") else "its own method"
            raise PolicyLoadError(
                f"the torch module {type(wrapped).__name__} has no forward",
                hint="give it a forward that returns logits or a distribution, "
                f"or a get_action that calls {verb}",
            )
        parameter = next(iter(wrapped.parameters()), self._torch.zeros(0))
        self._device = parameter.device
        self._dtype = parameter.dtype if parameter.is_floating_point() else self._torch.get_default_dtype()
        with contextlib.suppress(NotImplementedError):  # An exported program has one mode.
            wrapped.eval()
        self._reset, self.resets, self.row_by_row = reset, reset is not None, row_by_row

    def reset(self, do_resets: Array | None = None) -> None:  # noqa: ARG002
        if self._reset is not None:
            self._reset()

    def get_param_values(self) -> dict[str, Any]:
        """Return a copy of the module's `state_dict` in the CPU's memory: training goes on without it."""
        return {name: value.detach().cpu().clone() for name, value in self.wrapped.state_dict().items()}

    def _act(self, observations: Tree, numbers: RowNoise) -> tuple[Array, dict[str, Array]]:
        with self._torch.no_grad():
            output = self.wrapped(self._tensors(observations))
            is_distribution = isinstance(output, self._torch.distributions.Distribution)
            is_tensor = isinstance(output, self._torch.Tensor)
            logits = getattr(output, "logits", None) if is_distribution else output
            shape = (len(numbers), *self._action.shape)
            is_action = is_tensor and output.shape == shape and not output.is_floating_point()
            if self._action.kind == "discrete" and isinstance(logits, self._torch.Tensor) and not is_action:
                return self._choose(logits.double().cpu().numpy(), numbers), {}
            if is_distribution:
                output = output.mode if self._deterministic else _sample(output, numbers, self._action.shape)
            elif not is_action and (self._action.kind != "box" or not is_tensor):
                raise PolicyError(
                    f"the module gave {named(output)}, which is no action of {self._space}",
                    hint="let it return a torch Distribution, or wrap it in a policy with get_action",
                )
            values = output.cpu().numpy()
        check_shape("actions", values, shape)
        return values.astype(self._action.dtype), {}

    def _tensors(self, observations: Tree) -> Tree:
        tensors = []
        for leaf, column in zip(
            self._observations.leaves, self._observations.columns(observations), strict=True
        ):
            # Copied, as from_numpy warns of arrays that are read-only and would share the others.
            tensor = self._torch.from_numpy(np.array(column))
            tensors.append(
                tensor.to(device=self._device, dtype=self._dtype if leaf.kind == "box" else tensor.dtype)
            )
        return self._observations.tree(tensors)


def _sample(distribution: Any, numbers: RowNoise, shape: tuple[int, ...]) -> Any:
    """Return a sample of a torch Distribution of n rows.

    Normal ones, also Independent or transformed, draw row j from row j's stream, others from torch's global
    generator.
    """
    torch: Any = sys.modules["torch"]
    distributions = torch.distributions
    kind = type(distribution)  # Not isinstance, for a subclass may sample in a way of its own.
    if kind is distributions.Independent:
        return _sample(distribution.base_dist, numbers, shape)
    if kind is distributions.TransformedDistribution:
        value = _sample(distribution.base_dist, numbers, shape)
        for transform in distribution.transforms:
            value = transform(value)
        return value
    if kind is distributions.Normal and distribution.loc.shape == (len(numbers), *shape):
        noise = torch.from_numpy(numbers.next().reshape(distribution.loc.shape))
        return distribution.loc + distribution.scale * noise.to(distribution.loc)
    return distribution.sample()
