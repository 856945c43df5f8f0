"""TorchPolicy: a `torch.nn.Module` as a policy. Torch is never imported here: whoever has a module has loaded it."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import PolicyError, PolicyLoadError
from rollout_cli.policies.base import Tree
from rollout_cli.policies.random import set_generator
from rollout_cli.policies.rows import stack_samples, take_rows
from rollout_cli.spaces import flatten, space_leaves, unflatten

Array = npt.NDArray[Any]


def is_torch_module(candidate: Any) -> bool:
    """Return whether `candidate` is a `torch.nn.Module`, without importing torch."""
    module_type = getattr(getattr(sys.modules.get("torch"), "nn", None), "Module", None)
    return module_type is not None and isinstance(candidate, module_type)


class TorchPolicy:
    """Calls a module with a batch of observations, in eval mode and without gradients.

    The module gets a tree of tensors (n, *shape) on its own device: numbers of a Box in its parameters' floating dtype,
    those of other spaces as they are. What it gives decides:

    - a `torch.distributions.Distribution` is sampled, from torch's global generator; its mode where deterministic;
    - for a Discrete space, a tensor (n, number of actions) holds logits: an action is drawn from their softmax with a
      generator of the row's own, or is the argmax where deterministic;
    - for a Box, a tensor (n, *shape) is the action.

    A Categorical distribution of a Discrete space counts as its logits.

    Args:
        wrapped: The module.
        env_spec: The spaces that it is for.
        deterministic: Whether it must not explore.

    Raises:
        PolicyLoadError: If an observation or action space is none that tensors can stand for, or the module has a
            `reset`: how its state belongs to rows is then for a `get_actions` of its own to say.
    """

    row_wise = False

    def __init__(self, wrapped: Any, env_spec: EnvSpec, *, deterministic: bool) -> None:
        _check_spaces(env_spec)
        if callable(getattr(wrapped, "reset", None)):
            raise PolicyLoadError(
                f"the module {type(wrapped).__name__} has a reset, so it keeps a state between steps",
                hint="give it get_action and get_actions, which say how the state follows its episodes",
            )
        self.wrapped = wrapped.eval()
        self._torch = _torch()
        self._deterministic = deterministic
        # Not the spaces themselves: they are the environment's, and are looked for and seeded there.
        self._env_spec = env_spec
        self._leaves = space_leaves(env_spec.observation_space)
        parameter = next(iter(wrapped.parameters()), None)
        self._device = None if parameter is None else parameter.device
        floating = parameter is not None and parameter.is_floating_point()
        self._dtype = parameter.dtype if parameter is not None and floating else self._torch.get_default_dtype()
        self._generator = np.random.Generator(np.random.PCG64())
        self._row_generators: list[np.random.Generator] = []

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        """Choose the action for one observation."""
        batch = stack_samples(self._env_spec.observation_space, [observation])
        return take_rows(self._env_spec.action_space, self._act(batch, [self._generator]))[0], {}

    def get_actions(self, observations: Tree) -> tuple[Tree, dict[str, Any]]:
        """Choose actions for n observations, a tree of arrays (n, *shape)."""
        n_rows = len(flatten(self._env_spec.observation_space, observations)[0])
        return self._act(observations, self._sized_generators(n_rows)), {}

    def seed(self, seed: int) -> None:
        """Begin the draws that belong to `seed`."""
        set_generator(self._generator, seed)

    def seed_rows(self, mask: Array, seeds: Any) -> None:
        """Begin the draws that belong to `seeds[j]` in each row j where `mask`, bool (n,), is true."""
        generators = self._sized_generators(len(mask))
        for row in np.flatnonzero(mask).tolist():
            set_generator(generators[row], int(seeds[row]))

    def reset(self, do_resets: Array | None = None) -> None:
        """Do nothing: the module keeps nothing from step to step."""

    def get_param_values(self) -> dict[str, Any]:
        """Return a copy of the module's state dictionary, on the CPU."""
        return {key: value.detach().cpu().clone() for key, value in self.wrapped.state_dict().items()}

    def set_param_values(self, params: Any) -> None:
        """Take a state dictionary over."""
        self.wrapped.load_state_dict(params)

    def _act(self, observations: Tree, generators: list[np.random.Generator]) -> Tree:
        with self._torch.no_grad():
            output = self.wrapped(self._as_tensors(observations))
            logits = getattr(output, "logits", None) if _is_distribution(output) else output
            if isinstance(self._env_spec.action_space, spaces.Discrete) and self._torch.is_tensor(logits):
                return self._choose(logits, generators)
            if _is_distribution(output):
                output = output.mode if self._deterministic else output.sample()
            elif not isinstance(self._env_spec.action_space, spaces.Box):
                raise PolicyError(
                    f"the module gave {type(output).__name__}, which is no action of {self._env_spec.action_space}",
                    hint="let it return a torch Distribution, or wrap it in a policy with get_action",
                )
            return self._as_actions(output, len(generators))

    def _as_tensors(self, observations: Tree) -> Tree:
        tensors = []
        for leaf, column in zip(self._leaves, flatten(self._env_spec.observation_space, observations), strict=True):
            # Copied, as from_numpy warns of arrays that are read-only and would share the others.
            tensor = self._torch.from_numpy(np.array(column))
            tensors.append(tensor.to(device=self._device, dtype=self._dtype if leaf.kind == "box" else tensor.dtype))
        return unflatten(self._env_spec.observation_space, tensors)

    def _choose(self, logits: Any, generators: list[np.random.Generator]) -> Array:
        assert isinstance(self._env_spec.action_space, spaces.Discrete)
        values = logits.double().cpu().numpy()
        expected = (len(generators), int(self._env_spec.action_space.n))
        if values.shape != expected:
            raise PolicyError(
                f"the module gave logits of shape {values.shape}, expected {expected}", hint="one row an observation"
            )
        if np.isnan(values).any() or np.isposinf(values).any():
            raise PolicyError(f"the module gave logits {values}", hint="logits must be finite, or -inf for never")
        if self._deterministic:
            chosen = values.argmax(axis=1)
        else:
            chosen = _draw_categories(values, np.array([generator.random() for generator in generators]))
        return np.asarray(self._env_spec.action_space.start + chosen, np.int64)

    def _as_actions(self, output: Any, n_rows: int) -> Array:
        values = output.cpu().numpy()
        leaf = space_leaves(self._env_spec.action_space)[0]
        if values.shape != (n_rows, *leaf.shape):
            raise PolicyError(
                f"the module gave actions of shape {values.shape}, expected {(n_rows, *leaf.shape)}",
                hint="its output must be a batch of actions",
            )
        return np.asarray(values.astype(leaf.dtype))

    def _sized_generators(self, n_rows: int) -> list[np.random.Generator]:
        if len(self._row_generators) != n_rows:
            self._row_generators = [np.random.Generator(np.random.PCG64()) for _ in range(n_rows)]
        return self._row_generators


def _draw_categories(logits: Array, places: Array) -> Array:
    """Return for each row the category whose share of the softmax covers `places`, (n,) in [0, 1)."""
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    edges = np.cumsum(weights, axis=1)
    chosen = (edges <= (places * edges[:, -1])[:, None]).sum(axis=1)
    # A place just under 1 may round up to the last edge.
    return np.asarray(np.minimum(chosen, logits.shape[1] - 1))


def _check_spaces(env_spec: EnvSpec) -> None:
    action_space = env_spec.action_space
    if isinstance(action_space, spaces.Dict | spaces.Tuple | spaces.Text):
        raise PolicyLoadError(
            f"a torch module cannot choose an action of {action_space}", hint="wrap it in a policy with get_action"
        )
    if any(leaf.kind == "text" for leaf in space_leaves(env_spec.observation_space)):
        raise PolicyLoadError("a torch module cannot take text", hint="wrap it in a policy with get_action")


def _torch() -> Any:
    return sys.modules["torch"]


def _is_distribution(output: Any) -> bool:
    return isinstance(output, _torch().distributions.Distribution)
