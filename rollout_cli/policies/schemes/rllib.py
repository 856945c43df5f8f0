"""The scheme `rllib`: an RLModule of RLlib's new API stack, alone or in the checkpoint of an algorithm.

One pickle has the class, spaces and configuration, another the tensors. Unless the user trusts the folder,
the pickles may contain only classes of RLlib, and no code in them runs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from gymnasium import spaces

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.spaces import Array, Tree, differences, map_tree
from rollout_cli.errors import PolicyLoadError
from rollout_cli.keywords import Keywords, Record
from rollout_cli.policies.networks import NetworkPolicy
from rollout_cli.policies.noise import RowNoise
from rollout_cli.policies.policy import ActionsAndInfos
from rollout_cli.policies.schemes.files import FileScheme, PolicyFiles
from rollout_cli.policies.schemes.unpickle import Allowed, restricted_loads

Finish = Callable[[Array], Array]

_CLASS = "class_and_ctor_args.pkl"
_TENSORS = "module_state.pkl"
_METADATA = "metadata.json"
_MODULE = "default_policy"
_PLACES = ("learner_group/learner/rl_module", "learner/rl_module", "rl_module", "")
"""The folders of a checkpoint that may contain the modules, each in a folder with its name."""
_PARAMETERS = "action_dist_inputs"
_PIPELINES = ("env_to_module_connector", "module_to_env_connector")
"""The connector pipelines of a checkpoint's env runner, before and after the module."""
_SCALING = "NormalizeAndClipActions"
_CLASSES = Allowed(
    "RLlib", r"ray\.rllib\.(algorithms|core)(\.[a-z]\w*)+", r"\w+(RLModule|Catalog|ModelConfig)"
)
_CONNECTORS = Allowed(
    "RLlib's default connectors",
    r"ray\.rllib\.connectors(\.[a-z]\w*)+",
    "EnvToModulePipeline|AddObservationsFromEpisodesToBatch|AddStatesFromEpisodesToBatch|"
    "BatchIndividualItems|AddTimeDimToBatchAndZeroPad|NumpyToTensor|ModuleToEnvPipeline|GetActions|"
    "TensorToNumpy|UnBatchToIndividualItems|RemoveSingleTsTimeRankFromBatch|ListifyDataForVectorEnv|"
    f"{_SCALING}",
    "the checkpoint's pipeline",
    "replace the connector by a wrapper of the environment, and pass a copy of the RLModule's folder",
)


class RllibPolicy(NetworkPolicy):
    """Acts by the inference pass of an RLModule, which returns actions or the parameters of a distribution.

    Actions of a categorical or diagonal Gaussian distribution depend on the seeds of the rows. Other
    distributions sample from torch's global generator, row by row. A recurrent module also acts row by row.

    If the pass returns parameters of a distribution, the info `log_prob` is for the action before scaling.

    Args:
        module: The RLModule.
        env_spec: The spaces.
        deterministic: Use the deterministic action of the distribution.
        finish: Converts actions of the module to actions of the environment.
    """

    def __init__(self, module: Any, env_spec: EnvSpec, *, deterministic: bool, finish: Finish) -> None:
        from ray.rllib.core.distribution.torch import torch_distribution  # noqa: PLC0415 - loaded by now
        from ray.rllib.utils.torch_utils import convert_to_torch_tensor  # noqa: PLC0415 - loaded by now

        super().__init__(module, env_spec, deterministic=deterministic)
        self._torch: Any = sys.modules["torch"]
        self._finish = finish
        self._tensors = convert_to_torch_tensor
        self._distribution = module.get_inference_action_dist_cls()
        self._is_gaussian = self._distribution is torch_distribution.TorchDiagGaussian
        state = self._tensors(module.get_initial_state() or {})
        self._first_state = self._state = map_tree(lambda value: value[None], state)
        self.resets = bool(state)
        is_drawn = not (deterministic or self._is_gaussian or self._action.kind == "discrete")
        self.row_by_row = self.resets or is_drawn

    def reset(self, do_resets: Array | None = None) -> None:  # noqa: ARG002
        self._state = self._first_state

    def _act(self, observations: Tree, numbers: RowNoise) -> ActionsAndInfos:
        infos = {}
        with self._torch.no_grad():
            output = self._forward(self._tensors(observations))
            if "actions" in output:
                actions = output["actions"]
            else:
                distribution = self._distribution.from_logits(output[_PARAMETERS])
                actions = self._sample_actions(distribution, output[_PARAMETERS], numbers)
                infos["log_prob"] = distribution.logp(actions).cpu().numpy()
        return self._typed(self._finish(actions.cpu().numpy()), len(numbers)), infos

    def _forward(self, observations: Tree) -> Any:
        """Return the output tensors of the module for n observations, by name, and keep its state."""
        if not self.resets:
            return self.wrapped.forward_inference({"obs": observations})
        # The second dimension is time.
        batch = {"obs": map_tree(lambda value: value[:, None], observations), "state_in": self._state}
        output = dict(self.wrapped.forward_inference(batch))
        self._state = output.pop("state_out")
        return {name: value[:, 0] for name, value in output.items() if name in ("actions", _PARAMETERS)}

    def _sample_actions(self, distribution: Any, parameters: Any, numbers: RowNoise) -> Any:
        """Sample an action of the module for each of n rows of parameters."""
        if self._action.kind == "discrete":
            choices = self._choose(parameters.double().cpu().numpy(), numbers)
            return self._tensors(choices - int(self._space.start))
        if self._deterministic:
            return distribution.to_deterministic().sample()
        if not self._is_gaussian:
            return distribution.sample()
        mean, log_deviation = parameters.chunk(2, dim=-1)
        return mean + log_deviation.exp() * self._tensors(numbers.next())


def _check_space(name: str, saved: Any, space: Any) -> None:
    for part, saved_part, env_part in differences(name, saved, space):
        are_boxes = isinstance(saved_part, spaces.Box) and isinstance(env_part, spaces.Box)
        if not are_boxes or saved_part.shape != env_part.shape:
            raise PolicyLoadError(
                f"the {part} of the module is {saved_part}, but the environment has {env_part}",
                code="policy-space",
                hint="use the arguments and wrappers of the training environment",
            )


def _beside(folder: Path) -> Mapping[str, Path]:
    """Return the files of the module, and the files of the connector pipelines in its checkpoint."""
    modules = next((path for place in _PLACES if (path := folder / place / _MODULE).is_dir()), folder)
    if not (modules / _TENSORS).is_file() or any(modules.glob(f"*/{_TENSORS}")):
        raise PolicyLoadError(
            f"{str(folder)!r} is neither an RLModule nor a checkpoint with an RLModule {_MODULE!r}",
            code="policy-folder",
            hint="pass the folder of one RLModule, such as CHECKPOINT/learner_group/learner/rl_module/NAME",
        )
    files = {name: modules / name for name in (_CLASS, _TENSORS, _METADATA)}
    parents = (Path.cwd() / modules).parents[:4]
    runner = next((path for parent in parents if (path := parent / "env_runner").is_dir()), None)
    if runner is None:
        return files
    return {**files, **{name: runner / name / _CLASS for name in _PIPELINES}}


def _load(files: PolicyFiles, options: Keywords, env_spec: EnvSpec, *, deterministic: bool) -> RllibPolicy:
    from ray.rllib.utils.torch_utils import convert_to_torch_tensor  # noqa: PLC0415 - it loads torch

    unpickle = partial(restricted_loads, trust=options.get("trust", False), allowed=_CLASSES)
    constructor = unpickle(files.contents[_CLASS])
    arguments, keywords = constructor["ctor_args_and_kwargs"]
    module = constructor["class"](*arguments, **keywords)
    _check_space("observation space", module.observation_space, env_spec.observation_space)
    _check_space("action space", module.action_space, env_spec.action_space)
    # A training module may have additional tensors, such as target networks.
    missing = module.load_state_dict(
        convert_to_torch_tensor(unpickle(files.contents[_TENSORS])), strict=False
    ).missing_keys
    if missing:
        raise PolicyLoadError(
            f"{_TENSORS} lacks {', '.join(missing)}",
            code="policy-file-damaged",
            hint="save the module again with RLModule.save_to_path",
        )
    finish = _finish(files, options, env_spec.action_space)
    return RllibPolicy(module, env_spec, deterministic=deterministic, finish=finish)


def _finish(files: PolicyFiles, options: Keywords, space: Any) -> Finish:
    """Return the function that converts the module's actions to the environment's, like RLlib."""
    from ray.rllib.utils.spaces.space_utils import clip_action, unsquash_action  # noqa: PLC0415 - as above

    settings = {"normalize_actions": options.get("scale"), "clip_actions": False}
    for name in _PIPELINES:
        if name in files.contents:
            pipeline = restricted_loads(files.contents[name], trust=False, allowed=_CONNECTORS)
            for connector, _, keywords in pipeline["ctor_args_and_kwargs"][1]["connectors"]:
                if connector.__name__ == _SCALING and settings["normalize_actions"] is None:
                    settings = keywords
    if not isinstance(space, spaces.Box):
        # RLlib's discrete actions start at 0.
        return lambda actions: actions + getattr(space, "start", 0)
    if settings["normalize_actions"] is None and space.is_bounded():
        raise PolicyLoadError(
            f"{files.path} does not record whether actions in [-1, 1] are scaled to the bounds of {space}",
            code="policy-action-range",
            hint="pass the complete checkpoint, or {policy_kwargs=scale=true}, which is RLlib's default",
        )
    if settings["normalize_actions"]:
        return partial(unsquash_action, action_space_struct=space)
    if settings["clip_actions"]:
        return partial(clip_action, action_space=space)
    return lambda actions: actions


def _about(files: PolicyFiles) -> Record:
    return {"saved_by": {"ray": json.loads(files.contents[_METADATA])["ray_version"]}}


RLLIB = FileScheme(
    "rllib",
    "an RLlib RLModule",
    _load,
    {"scale": bool, "trust": bool},
    takes_folder=True,
    # RLlib imports tree, which Ray alone does not install.
    needs={"torch": "torch", "ray": "ray[rllib]", "tree": "ray[rllib]"},
    beside=_beside,
    about=_about,
)
