"""Networks as policies: the base class NetworkPolicy, and TorchPolicy for a `torch.nn.Module`.

This module never imports torch: whoever created the network has imported it.
"""

from __future__ import annotations

import contextlib
import copy
import sys
from abc import abstractmethod
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import numpy as np

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.spaces import Array, SpaceRows, Tree, count_rows, map_tree
from rollout_cli.errors import PolicyError, PolicyLoadError
from rollout_cli.policies.noise import RowNoise, SeededPolicy, row_noise
from rollout_cli.policies.policy import ActionAndInfo, ActionsAndInfos, named, own_method


class NetworkPolicy(SeededPolicy):
    """The base class of policies that act on a batch of observations with a network, by `_act`.

    Raises:
        PolicyLoadError: The action space is composite or has strings.
    """

    def __init__(self, wrapped: Any, env_spec: EnvSpec, *, deterministic: bool) -> None:
        self._deterministic = deterministic
        self._space: Any = env_spec.action_space
        self._observations = SpaceRows(env_spec.observation_space)
        self._actions = SpaceRows(env_spec.action_space)
        self._action, *others = self._actions.leaves
        if others or self._action.path or self._action.dtype == object:
            raise PolicyLoadError(
                f"a network cannot choose actions of {env_spec.action_space}",
                code="network-space",
                hint="wrap it in a policy with get_action",
            )
        super().__init__(wrapped, lambda n_rows: row_noise(env_spec.action_space, n_rows))

    def get_action(self, observation: Any) -> ActionAndInfo:
        batch = self._observations.stack([observation])
        actions, infos = self._act(batch, self.streams.single)
        return self._actions.split(actions)[0], map_tree(itemgetter(0), infos)

    def get_actions(self, observations: Tree) -> ActionsAndInfos:
        return self._act(observations, self.streams.sized(count_rows(observations)))

    @abstractmethod
    def _act(self, observations: Tree, numbers: RowNoise) -> ActionsAndInfos:
        """Return actions (n, *shape) and infos (n,) for n observations, sampled with n rows of numbers."""

    def _choose(self, logits: Array, numbers: RowNoise) -> Array:
        """Sample a category from each row's softmax, int64 (n,); if deterministic, return the most likely one.

        Args:
            logits: Floats (n, number of categories).
            numbers: The random numbers of the rows.

        Raises:
            PolicyError: The logits have another shape, or are neither finite nor -inf.
        """
        check_shape("logits", logits, (len(numbers), numbers.width))
        # `max` returns NaN if a row has one.
        if not np.isfinite(logits.max(axis=1)).all():
            raise PolicyError(
                f"the module returned logits {logits}, expected finite numbers or -inf",
                code="network-output",
                hint="return -inf only for actions that must not be chosen",
            )
        # The argmax after adding Gumbel noise is a sample from the softmax.
        noise = 0.0 if self._deterministic else numbers.next()
        return np.asarray((logits + noise).argmax(axis=1) + int(self._space.start))

    def _typed(self, actions: Array, n_rows: int) -> Any:
        """Return actions in the dtype of their space; raise PolicyError if their shape is not (n, *shape).

        Numbers that an integer dtype would change, such as 2.7 or 256 for uint8, stay unchanged, and the
        recorder rejects them. The result is then a list of rows, in which the other rows are converted.
        """
        check_shape("actions", actions, (n_rows, *self._action.shape))
        with np.errstate(over="ignore", invalid="ignore"):
            typed = np.asarray(actions.astype(self._action.dtype))
        if typed.dtype.kind == "f" or np.array_equal(typed, actions):
            return typed
        rows = []
        for row in range(n_rows):
            is_exact = np.array_equal(typed[row], actions[row])
            rows.append((typed if is_exact else actions)[row, ...])
        return rows


def check_shape(noun: str, values: Array, expected: tuple[int, ...]) -> None:
    """Raise PolicyError unless actions or logits have the `expected` shape."""
    if values.shape != expected:
        raise PolicyError(
            f"the module returned {noun} of shape {values.shape}, expected {expected}",
            code="network-output",
            hint="return one row per observation",
        )


def is_torch_module(candidate: Any) -> bool:
    """Return True if `candidate` is a `torch.nn.Module`, without importing torch."""
    module_type = getattr(getattr(sys.modules.get("torch"), "nn", None), "Module", None)
    return isinstance(module_type, type) and isinstance(candidate, module_type)


class TorchPolicy(NetworkPolicy):
    """A policy that calls a torch module with a batch of observations, in eval mode and without gradients.

    The module gets a tree of tensors (n, *shape) on its device. Box observations are converted to the floating
    dtype of its parameters, other observations are unchanged. The output decides how actions are chosen:

    - A `torch.distributions.Distribution` is sampled, or its mode is used if deterministic.
    - For a Discrete space, a tensor (n, number of actions) or a Categorical distribution has the logits: the
      action is sampled from their softmax, or is the argmax if deterministic.
    - For a Box, a tensor (n, *shape) is the action; for every space, a tensor of integers is the action.

    The samples of a row depend only on its seed, except for distributions that `_sample` does not support.

    With `row_by_row` the module gets batches of one row, because it samples from torch's global generator or
    accepts no other batch size. A module with a `reset` method keeps a state and also acts row by row; each
    episode starts with a call of `reset`.
    """

    def __init__(
        self, wrapped: Any, env_spec: EnvSpec, *, deterministic: bool, row_by_row: bool = False
    ) -> None:
        super().__init__(wrapped, env_spec, deterministic=deterministic)
        if any(leaf.dtype == object for leaf in self._observations.leaves):
            raise PolicyLoadError(
                "a torch module cannot take observations with strings or a Sequence",
                code="network-space",
                hint="wrap it in a policy with get_action",
            )
        self._torch: Any = sys.modules["torch"]
        self._observation_space = env_spec.observation_space
        self._acts_alike: dict[int, bool] = {}  # By number of rows.
        if getattr(wrapped.forward, "__func__", None) is self._torch.nn.Module.forward:
            verb = "get_action_and_value" if hasattr(wrapped, "get_action_and_value") else "another method"
            raise PolicyLoadError(
                f"the torch module {type(wrapped).__name__} has no forward method",
                code="network-no-forward",
                hint="add a forward method that returns logits or a distribution, "
                f"or a get_action method that calls {verb}",
            )
        parameter = next(iter(wrapped.parameters()), self._torch.zeros(0))
        self._device = parameter.device
        self._dtype = parameter.dtype if parameter.is_floating_point() else self._torch.get_default_dtype()
        with contextlib.suppress(NotImplementedError):  # An exported program has one mode.
            wrapped.eval()
        self._reset = own_method(wrapped, "reset")
        self.resets = self._reset is not None
        self.row_by_row = row_by_row or self.resets

    def reset(self, do_resets: Array | None = None) -> None:  # noqa: ARG002
        if self._reset is not None:
            self._reset()

    def acts_alike(self, n_rows: int) -> bool:
        """Return True if equal observations get equal outputs in every row of a batch of `n_rows`.

        Kernels may sum the first rows of a batch in another order than the last rows. The order depends only
        on shapes, so a test with one observation is enough.
        """
        if n_rows not in self._acts_alike:
            space = copy.deepcopy(self._observation_space)  # The space's own generator stays untouched.
            space.seed(0)
            sample = [*self._observations.columns(space.sample())]
            for place, leaf in enumerate(self._observations.leaves):
                if leaf.kind == "box":
                    # Large numbers would saturate the module and hide a difference.
                    sample[place] = np.clip(sample[place], -1, 1)
            batch = self._tensors(self._observations.stack([self._observations.tree(sample)] * n_rows))
            outputs = []
            with self._torch.no_grad(), contextlib.suppress(Exception):  # The first step raises it.
                outputs = [*_output_tensors(self.wrapped(batch))]
            self._acts_alike[n_rows] = bool(outputs) and all(
                output.shape[:1] == (n_rows,) and bool((output == output[:1]).all()) for output in outputs
            )
        return self._acts_alike[n_rows]

    def get_param_values(self) -> dict[str, Any]:
        """Return a copy of the module's `state_dict` in CPU memory, which later training does not change."""
        return {name: value.detach().cpu().clone() for name, value in self.wrapped.state_dict().items()}

    def _act(self, observations: Tree, numbers: RowNoise) -> ActionsAndInfos:
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
                    f"the module returned {named(output)}, expected an action of {self._space}",
                    code="network-output",
                    hint="return a torch Distribution, or wrap the module in a policy with get_action",
                )
            values = output.cpu().numpy()
        return self._typed(values, len(numbers)), {}

    def _tensors(self, observations: Tree) -> Tree:
        tensors = []
        columns = self._observations.columns(observations)
        for leaf, column in zip(self._observations.leaves, columns, strict=True):
            # Copied: from_numpy warns about read-only arrays, and shares the memory of other arrays.
            tensor = self._torch.from_numpy(np.array(column))
            dtype = self._dtype if leaf.kind == "box" else tensor.dtype
            tensors.append(tensor.to(self._device, dtype))
        return self._observations.tree(tensors)


def _output_tensors(output: Any) -> Iterator[Any]:
    """Yield the output tensor of a module, or the parameters of its torch Distribution."""
    torch: Any = sys.modules["torch"]
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, torch.distributions.Distribution):
        for value in vars(output).values():
            yield from _output_tensors(value)


def _sample(distribution: Any, numbers: RowNoise, shape: tuple[int, ...]) -> Any:
    """Return a sample of a torch Distribution of n rows.

    A Normal distribution, also Independent or transformed, uses the random numbers of each row. Other
    distributions use torch's global generator.
    """
    torch: Any = sys.modules["torch"]
    distributions = torch.distributions
    kind = type(distribution)  # Not isinstance, because a subclass may sample differently.
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
