"""TorchPolicy: a `torch.nn.Module` as a policy. Torch is never imported here: whoever has a module has loaded it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import PolicyError, PolicyLoadError
from rollout_cli.policies.base import Tree
from rollout_cli.policies.row_draws import GumbelStreams, NormalDraws, RowDraws
from rollout_cli.policies.rows import SpaceRows
from rollout_cli.policies.torch_forward import forward_of
from rollout_cli.policies.torch_sampling import choose, sample
from rollout_cli.spaces import space_leaves

Array = npt.NDArray[Any]
Draws = RowDraws | NormalDraws


def is_torch_module(candidate: Any) -> bool:
    """Return whether `candidate` is a `torch.nn.Module`, without importing torch."""
    module_type = getattr(getattr(sys.modules.get("torch"), "nn", None), "Module", None)
    return module_type is not None and isinstance(candidate, module_type)


class TorchPolicy:
    """Calls a module with a batch of observations, in eval mode and without gradients.

    The module gets a tree of tensors (n, *shape) on its own device: numbers of a Box in its parameters' floating dtype,
    those of other spaces as they are. What it gives decides:

    - a `torch.distributions.Distribution` is sampled; its mode where deterministic;
    - for a Discrete space, a tensor (n, number of actions) holds logits: an action is drawn from their softmax, or is
      the argmax where deterministic;
    - for a Box, a tensor (n, *shape) is the action.

    A Categorical distribution of a Discrete space counts as its logits. What a row draws follows from its own seed;
    only a distribution that `torch_sampling.sample` does not know draws from torch's global generator.

    Args:
        wrapped: The module.
        env_spec: The spaces that it is for.
        deterministic: Whether it must not explore.

    Raises:
        PolicyLoadError: If an observation or action space is none that tensors can stand for, or the module has a
            `reset`: how its state belongs to rows is then for a `get_actions` of its own to say.
    """

    row_wise = False
    hands_off = True
    """The module gets a copy of the observations, and nobody holds the array of actions."""

    def __init__(self, wrapped: Any, env_spec: EnvSpec, *, deterministic: bool) -> None:
        _check_spaces(env_spec)
        if callable(getattr(wrapped, "reset", None)):
            raise PolicyLoadError(
                f"the module {type(wrapped).__name__} has a reset, so it keeps a state between steps",
                hint="give it get_action and get_actions, which say how the state follows its episodes",
            )
        self.wrapped = wrapped.eval()
        self._forward = forward_of(wrapped)
        self._torch = torch = _torch()
        self._tensor, self._distribution = torch.Tensor, torch.distributions.Distribution
        self._no_grad, self._from_numpy, self._float32 = torch.no_grad, torch.from_numpy, torch.float32
        self._deterministic = deterministic
        # Not the spaces themselves: they are the environment's, and are looked for and seeded there.
        space = env_spec.action_space
        self._observations, self._actions = SpaceRows(env_spec.observation_space), SpaceRows(space)
        self._sees_box = isinstance(env_spec.observation_space, spaces.Box)
        self._choices: range | None = None
        if isinstance(space, spaces.Discrete):
            self._choices = range(int(space.start), int(space.start + space.n))
        self._is_box = isinstance(space, spaces.Box)
        parameter = next(iter(wrapped.parameters()), None)
        self._device = None if parameter is None else parameter.device
        self._on_cpu = self._device is None or self._device.type == "cpu"
        floating = parameter is not None and parameter.is_floating_point()
        self._dtype = parameter.dtype if parameter is not None and floating else torch.get_default_dtype()
        self._streams = None if self._choices is None else GumbelStreams(len(self._choices))
        self._draws, self._row_draws = self._new_draws(1), self._new_draws(0)

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        """Choose the action for one observation."""
        batch = self._observations.stack([observation])
        return self._actions.take(self._act(batch, self._draws))[0], {}

    def get_actions(self, observations: Tree) -> tuple[Tree, dict[str, Any]]:
        """Choose actions for n observations, a tree of arrays (n, *shape)."""
        n_rows = len(self._observations.columns(observations)[0])
        return self._act(observations, self._sized_draws(n_rows)), {}

    def prepare_seeds(self, seeds: Sequence[int]) -> None:
        """Draw at once what some seeds begin with, which `seed` or `seed_rows` will be called with."""
        if self._streams is not None and not self._deterministic:
            self._streams.prepare(seeds)

    def seed(self, seed: int) -> None:
        """Begin the draws that belong to `seed`."""
        if not self._deterministic:
            self._draws.seed(0, seed)

    def seed_rows(self, mask: Array, seeds: Any) -> None:
        """Begin the draws that belong to `seeds[j]` in each row j where `mask`, bool (n,), is true."""
        if self._deterministic:
            return
        draws = self._sized_draws(len(mask))
        for row in mask.nonzero()[0].tolist():
            draws.seed(row, int(seeds[row]))

    def reset(self, do_resets: Array | None = None) -> None:
        """Do nothing: the module keeps nothing from step to step."""

    def get_param_values(self) -> dict[str, Any]:
        """Return a copy of the module's state dictionary, on the CPU."""
        return {key: value.detach().cpu().clone() for key, value in self.wrapped.state_dict().items()}

    def set_param_values(self, params: Any) -> None:
        """Take a state dictionary over."""
        self.wrapped.load_state_dict(params)

    def _act(self, observations: Tree, draws: Draws) -> Tree:
        with self._no_grad():
            sees_box = self._sees_box
            tensors = self._as_tensor(observations, is_box=True) if sees_box else self._as_tensors(observations)
            output = self._forward(tensors)
            is_distribution = isinstance(output, self._distribution)
            logits = getattr(output, "logits", None) if is_distribution else output
            if self._choices is not None and isinstance(draws, RowDraws) and isinstance(logits, self._tensor):
                return self._choose(self._choices, logits, draws)
            if is_distribution:
                output = output.mode if self._deterministic else sample(output, draws)
            elif not self._is_box:
                raise PolicyError(
                    f"the module gave {type(output).__name__}, which is no action of {self._actions.leaves[0].space}",
                    hint="let it return a torch Distribution, or wrap it in a policy with get_action",
                )
            return self._as_actions(output, len(draws))

    def _as_tensors(self, observations: Tree) -> Tree:
        rows = self._observations
        pairs = zip(rows.leaves, rows.columns(observations), strict=True)
        return rows.tree([self._as_tensor(column, is_box=leaf.kind == "box") for leaf, column in pairs])

    def _as_tensor(self, column: Any, *, is_box: bool) -> Any:
        # Copied, as from_numpy warns of arrays that are read-only and would share the others.
        tensor = self._from_numpy(np.array(column))
        dtype = self._dtype if is_box else tensor.dtype
        is_there = self._on_cpu and tensor.dtype is dtype
        return tensor if is_there else tensor.to(device=self._device, dtype=dtype)

    def _choose(self, choices: range, logits: Any, draws: RowDraws) -> Array:
        # Of numpy's types, too: torch has some that numpy lacks.
        logits = logits if logits.dtype is self._float32 else logits.double()
        values = (logits if logits.is_cpu else logits.cpu()).numpy()
        expected = (len(draws), len(choices))
        if values.shape != expected:
            raise PolicyError(
                f"the module gave logits of shape {values.shape}, expected {expected}", hint="one row an observation"
            )
        chosen = choose(values, None if self._deterministic else draws.gumbel())
        if chosen is None:
            raise PolicyError(f"the module gave logits {values}", hint="logits must be finite, or -inf for never")
        return chosen + choices.start if choices.start else chosen

    def _as_actions(self, output: Any, n_rows: int) -> Array:
        values = output.cpu().numpy()
        leaf = self._actions.leaves[0]
        if values.shape != (n_rows, *leaf.shape):
            raise PolicyError(
                f"the module gave actions of shape {values.shape}, expected {(n_rows, *leaf.shape)}",
                hint="its output must be a batch of actions",
            )
        return np.asarray(values.astype(leaf.dtype))

    def _sized_draws(self, n_rows: int) -> Draws:
        if len(self._row_draws) != n_rows:
            self._row_draws = self._new_draws(n_rows)
        return self._row_draws

    def _new_draws(self, n_rows: int) -> Draws:
        return NormalDraws(n_rows) if self._streams is None else RowDraws(n_rows, self._streams)


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
