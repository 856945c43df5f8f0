"""The scheme `sb3`: the zip file of a Stable-Baselines3 or sb3-contrib model.

The policy is rebuilt from the class, the spaces and `policy.pth` in the zip, without the algorithm and its
buffers. No code in the zip runs.
"""

from __future__ import annotations

import base64
import inspect
import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.spaces import Space, differences, map_tree
from rollout_cli.errors import PolicyLoadError, RolloutError
from rollout_cli.keywords import Keywords, Record
from rollout_cli.policies.adapt import PredictPolicy
from rollout_cli.policies.explore import EpsilonPolicy
from rollout_cli.policies.noise import PolicyStreams, row_noise
from rollout_cli.policies.policy import ActionAndInfo, AdaptedPolicy
from rollout_cli.policies.schemes.files import FileScheme, PolicyFiles
from rollout_cli.policies.schemes.unpickle import restricted_loads
from rollout_cli.sources.loading import first_line, needing

NEEDS = {"stable_baselines3": "stable-baselines3", "torch": "torch"}
_STATISTICS = "vecnormalize"
_AS_TRAINED = "use the arguments and wrappers of the training environment"


class _Zip:
    """The content of a model's zip; `get` unpickles values on demand."""

    def __init__(self, data: bytes, *, trust: bool) -> None:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            self.weights = file.read("policy.pth")
            self._values: Record = json.loads(file.read("data"))
        self._trust = trust

    def get(self, name: str) -> Any:
        value = self._values.get(name)
        if isinstance(value, dict) and ":serialized:" in value:
            return restricted_loads(base64.b64decode(value[":serialized:"]), trust=self._trust)
        return value

    @property
    def was_normalized(self) -> bool:
        """True for an on-policy model trained with VecNormalize; other models do not record it."""
        return "gae_lambda" in self._values and self._values.get("_last_original_obs") is not None

    def policy(self) -> Any:
        """Return the policy, a Stable-Baselines3 torch module."""
        import torch  # noqa: PLC0415 - only workers with such a policy need it

        policy_class = self.get("policy_class")
        parameters = inspect.signature(policy_class.__init__).parameters
        options = dict(self.get("policy_kwargs") or {})
        options.pop("device", None)
        defaults = {
            "use_sde": bool(self.get("use_sde")),
            "lr_schedule": lambda _: 0.0,  # The policy is not trained.
            # A torch optimizer would import torch's compiler, which takes seconds.
            "optimizer_class": lambda *_, **__: None,
        }
        options |= {name: value for name, value in defaults.items() if name in parameters}
        policy = policy_class(self.get("observation_space"), self.get("action_space"), **options)
        policy.load_state_dict(torch.load(io.BytesIO(self.weights), map_location="cpu", weights_only=True))
        policy.set_training_mode(False)
        return policy


class Sb3Policy(PredictPolicy):
    """A Stable-Baselines3 policy, optionally with observations normalized by saved statistics.

    The infos of an actor-critic policy without a state are `value` (of the observation) and `log_prob` (of the
    action before it is clipped to the bounds of a Box). Its categorical and Gaussian actions depend on the
    seeds of the rows. Other stochastic policies sample from torch's global generator and act row by row.

    Args:
        policy: The policy.
        env_spec: The environment's spaces.
        deterministic: Use the deterministic mode.
        statistics: A VecNormalize, or None for unnormalized observations.
    """

    def __init__(self, policy: Any, env_spec: EnvSpec, *, deterministic: bool, statistics: Any) -> None:
        from stable_baselines3.common import distributions  # noqa: PLC0415 - it loads torch

        super().__init__(policy, env_spec, deterministic=deterministic)
        self._statistics = statistics
        # A recurrent policy uses the inherited `_act`. MaskablePPO's policy is not an ActorCriticPolicy.
        is_actor_critic = hasattr(policy, "predict_values")
        self._has_critic = is_actor_critic and not hasattr(policy, "lstm_actor")
        self._draws: PolicyStreams | None = None
        if deterministic:
            return
        is_gaussian = is_actor_critic and type(policy.action_dist) is distributions.DiagGaussianDistribution
        if self._has_critic and (self._is_discrete or is_gaussian):
            self._draws = PolicyStreams(lambda n_rows: row_noise(env_spec.action_space, n_rows))
            self.seed = self._draws.seed
            self.seed_rows = self._draws.seed_rows
        elif is_actor_critic or hasattr(getattr(policy, "actor", None), "action_dist"):
            self.row_by_row = True

    def _act(self, observation: Any, n_rows: int, masks: Any) -> ActionAndInfo:
        if self._statistics is not None:
            observation = self._statistics.normalize_obs(observation)
        if not self._has_critic:
            return super()._act(observation, n_rows, masks)
        import torch  # noqa: PLC0415 - loaded by now

        policy = self.wrapped
        space = policy.action_space
        options = {"action_masks": masks} if self.takes_masks else {}
        tensors, is_batch = policy.obs_to_tensor(observation)
        with torch.no_grad():
            if self._draws is None:
                actions, values, log_probs = policy(tensors, deterministic=self._deterministic, **options)
            else:
                distribution = policy.get_distribution(tensors, **options)
                numbers = self._draws.sized(n_rows) if is_batch else self._draws.single
                actions = self._sample_actions(distribution.distribution, torch.from_numpy(numbers.next()))
                values = policy.predict_values(tensors)
                log_probs = distribution.log_prob(actions)
        actions = actions.cpu().numpy().reshape(-1, *space.shape)
        if policy.squash_output and isinstance(space, spaces.Box):
            actions = policy.unscale_action(actions)
        elif isinstance(space, spaces.Box):
            actions = np.clip(actions, space.low, space.high)
        infos = {"value": values.cpu().numpy()[:, 0], "log_prob": log_probs.cpu().numpy()}
        return actions if is_batch else actions[0], infos

    def _sample_actions(self, distribution: Any, numbers: Any) -> Any:
        """Sample the actions of n rows, a tensor, from torch's distribution with the rows' random numbers."""
        if self._is_discrete:
            # The argmax after adding Gumbel noise is a sample from the softmax.
            return (distribution.logits + numbers.to(distribution.logits)).argmax(dim=1)
        return distribution.mean + distribution.stddev * numbers.to(distribution.mean)


def load_model(
    data: bytes,
    statistics: bytes | None,
    env_spec: EnvSpec,
    *,
    deterministic: bool,
    trust: bool,
    trained_in: str = "",
) -> AdaptedPolicy:
    """Return the policy of a model's zip.

    Args:
        data: The zip.
        statistics: The pickle of a VecNormalize, or None.
        env_spec: The environment's spaces.
        deterministic: Use the deterministic mode.
        trust: Allow classes that are not from Stable-Baselines3, and so any code.
        trained_in: The id of the training environment, or an empty string.

    Raises:
        PolicyLoadError: The model has other spaces, needs statistics that are missing, or cannot be loaded.
    """
    model = _Zip(data, trust=trust)
    if model.was_normalized and statistics is None:
        raise PolicyLoadError(
            "the model was trained with VecNormalize, but its statistics are missing",
            code="normalization-missing",
            hint=f"pass the statistics: {{policy_kwargs={_STATISTICS}=vecnormalize.pkl}}",
        )
    try:
        with needing("sb3-contrib", "sb3_contrib"):
            policy = model.policy()
    except RolloutError:
        raise
    except Exception as error:
        versions = ", ".join(f"{name} {version}" for name, version in versions_of(data).items())
        raise PolicyLoadError(
            f"cannot rebuild the model: {first_line(error)}",
            code="policy-rebuild",
            hint=f"install the versions that saved it: {versions or 'unknown'}",
        ) from error
    hint = f"use the training environment: {{env={trained_in}}}" if trained_in else _AS_TRAINED
    _check_space("observation space", policy.observation_space, env_spec.observation_space, hint)
    _check_space("action space", policy.action_space, env_spec.action_space, hint)
    normalizer = None if statistics is None else restricted_loads(statistics, trust=trust)
    if normalizer is not None and normalizer.norm_obs:
        _check_moments(normalizer.obs_rms, policy.observation_space)
    adapted = Sb3Policy(policy, env_spec, deterministic=deterministic, statistics=normalizer)
    # DQN's epsilon-greedy exploration is a part of the algorithm; its policy is greedy.
    epsilon = float(model.get("exploration_rate") or 0.0)
    if deterministic or not epsilon:
        return adapted
    return EpsilonPolicy(adapted, env_spec.action_space, epsilon, "exploration rate")


def _check_space(name: str, model_space: Space, env_space: Space, hint: str) -> None:
    from stable_baselines3.common.preprocessing import is_image_space  # noqa: PLC0415 - it loads torch

    for part, saved, space in differences(name, model_space, env_space):
        shape: Any = saved.shape
        is_image = is_image_space(saved)
        if isinstance(saved, spaces.Box) and isinstance(space, spaces.Box):
            # A network accepts any numbers of its shape. Image spaces are saved with the channels first.
            is_same = shape == space.shape and (saved.dtype == space.dtype or not is_image)
            if is_same or (is_image and (*shape[1:], shape[0]) == space.shape):
                continue
        if shape and space.shape and is_image and shape[0] % space.shape[-1] == 0:
            frames = shape[0] // space.shape[-1]
            hint = f"stack {frames} frames, as VecFrameStack does: the model was trained with them"
        raise PolicyLoadError(
            f"the {part} of the model is {saved}, but the environment has {space}",
            code="policy-space",
            hint=hint,
        )


def _check_moments(moments: Any, space: Any) -> None:
    shapes = map_tree(lambda part: part.mean.shape, moments)
    expected = space.shape
    if isinstance(moments, dict):
        expected = {key: space[key].shape for key in moments}
    if shapes != expected:
        raise PolicyLoadError(
            f"the statistics are for observations of shape {shapes}, but the model expects {expected}",
            code="normalization-shape",
            hint="use the statistics that were saved with the model",
        )


def versions_of(data: bytes) -> dict[str, str]:
    """Return the versions of the packages that saved a model, by package, if its zip has them."""
    versions = {}
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        names = file.namelist()
        if "_stable_baselines3_version" in names:
            versions["stable-baselines3"] = file.read("_stable_baselines3_version").decode().strip()
        if "system_info.txt" in names:
            lines = file.read("system_info.txt").decode(errors="replace")
            pattern = r"^- (Python|PyTorch|Numpy|Gymnasium): (\S+)"
            versions.update(re.findall(pattern, lines, re.MULTILINE))
    return versions


def _load(files: PolicyFiles, options: Keywords, env_spec: EnvSpec, *, deterministic: bool) -> AdaptedPolicy:
    return load_model(
        files.data,
        files.contents.get(_STATISTICS),
        env_spec,
        deterministic=deterministic,
        trust=options.get("trust", False),
    )


def _about(files: PolicyFiles) -> Record:
    return {"saved_by": versions_of(files.data)}


SB3 = FileScheme(
    "sb3",
    "a Stable-Baselines3 model",
    _load,
    {_STATISTICS: Path, "trust": bool},
    needs=NEEDS,
    about=_about,
)
