"""The scheme `lerobot`: a policy folder that LeRobot's `save_pretrained` wrote (ACT, Diffusion, SmolVLA, ...).

The model may have several gigabytes, so each worker reads the folder itself and compares its hash with the
run's. All weights are safetensors; a processor step may name a class of any module, which only trust allows.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.spaces import Array, SpaceRows, Tree, map_tree
from rollout_cli.errors import PolicyLoadError
from rollout_cli.keywords import Keywords, Record
from rollout_cli.policies.policy import ActionAndInfo, ActionsAndInfos, AdaptedPolicy
from rollout_cli.sources.loading import needing, reporting

_CONFIG = "config.json"
_WEIGHTS = "model.safetensors"
_PROCESSORS = ("policy_preprocessor.json", "policy_postprocessor.json")
_SUFFIXES = (".json", ".safetensors")
_WITHOUT_NOISE = ("act",)
"""Types of policies that do not sample."""
_OPTIONS: Mapping[str, type] = {"n_action_steps": int, "device": str, "trust": bool}


@dataclass(frozen=True, slots=True)
class LerobotSource:
    """The source of a LeRobot policy.

    Attributes:
        path: The absolute path of the folder.
        kind: The type of the policy, such as `act`.
        sha256: The hash of what `sha256sum` prints for the folder's JSON and safetensors files, sorted by name.
        options: The options of the SPEC.
    """

    path: str
    kind: str
    sha256: str
    options: Keywords

    @classmethod
    def of(cls, path: str, options: Keywords) -> LerobotSource:
        """Read the configuration of a folder, and hash its files; load nothing.

        Raises:
            PolicyLoadError: It is not such a folder, it is of an older version, or an option is wrong.
        """
        folder = Path(path)
        if not is_lerobot(folder):
            raise PolicyLoadError(
                f"{path!r} is not a LeRobot policy: it lacks {_WEIGHTS}, or {_CONFIG} with input_features",
                code="policy-spec",
                hint="pass the folder that save_pretrained wrote, such as checkpoints/last/pretrained_model",
            )
        if missing := [name for name in _PROCESSORS if not (folder / name).is_file()]:
            raise PolicyLoadError(
                f"{path!r} has no {missing[0]}: the policy was saved by LeRobot before 0.4",
                code="policy-file-damaged",
                hint="convert it with LeRobot's lerobot/processor/migrate_policy_normalization.py",
            )
        for name, value in options.items():
            if name not in _OPTIONS or type(value) is not _OPTIONS[name]:
                raise PolicyLoadError(
                    f"lerobot:{path} does not accept {name}={value!r}",
                    code="policy-options",
                    hint="use n_action_steps=8, device=cuda or trust=true",
                )
        if not options.get("trust"):
            _check_steps(folder)
        return cls(str(Path.cwd() / path), _config(folder)["type"], _hash(folder), dict(options))

    def load(self, env_spec: EnvSpec, *, deterministic: bool = False) -> LerobotPolicy:
        if deterministic and self.kind not in _WITHOUT_NOISE:
            raise PolicyLoadError(
                f"a LeRobot policy of type {self.kind} has no deterministic mode",
                code="policy-not-deterministic",
                hint="omit {deterministic}: each episode samples from its own seed",
            )
        if (found := _hash(Path(self.path))) != self.sha256:
            raise PolicyLoadError(
                f"the files of {self.path} have the SHA-256 {found}, expected {self.sha256}",
                code="policy-hash",
                hint="restore the files with which the run started",
            )
        with needing("lerobot"):
            import lerobot  # noqa: F401, PLC0415 - an optional package, which loads torch
        with reporting(
            PolicyLoadError, f"cannot load {self.path} as a LeRobot policy", code="policy-file-damaged"
        ):
            parts = _loaded(self.path, self.options)
        return LerobotPolicy(*parts, env_spec)

    def describe(self) -> Record:
        return {
            "scheme": "lerobot",
            "path": self.path,
            "sha256": self.sha256,
            "options": dict(self.options),
            "type": self.kind,
        }


def is_lerobot(folder: Path) -> bool:
    """Return True for the folder of a LeRobot policy, judged by its files."""
    if not (folder / _WEIGHTS).is_file() or not (folder / _CONFIG).is_file():
        return False
    return {"type", "input_features"} <= _config(folder).keys()


def _config(folder: Path) -> dict[str, Any]:
    with reporting(PolicyLoadError, f"cannot read {folder / _CONFIG}", code="policy-file-damaged"):
        config = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
    return config if isinstance(config, dict) else {}


def _check_steps(folder: Path) -> None:
    """Raise PolicyLoadError if a processor has a step that LeRobot imports from a named module."""
    for name in _PROCESSORS:
        with reporting(PolicyLoadError, f"cannot read {folder / name}", code="policy-file-damaged"):
            steps = json.loads((folder / name).read_text(encoding="utf-8"))["steps"]
            foreign = [str(step.get("class")) for step in steps if "registry_name" not in step]
        if foreign := [step for step in foreign if not step.startswith("lerobot.")]:
            raise PolicyLoadError(
                f"{folder / name} names {foreign[0]}, which runs code of that module",
                code="file-may-run-code",
                hint="pass {policy_kwargs=trust=true} if you trust the folder",
            )


def _hash(folder: Path) -> str:
    lines = []
    with reporting(PolicyLoadError, f"cannot read {folder}", code="policy-file-damaged"):
        for path in sorted(folder.iterdir()):
            if path.suffix in _SUFFIXES:
                with path.open("rb") as file:
                    lines.append(f"{file_digest(file, 'sha256').hexdigest()}  {path.name}\n")
    return sha256("".join(lines).encode()).hexdigest()


def _loaded(path: str, options: Keywords) -> tuple[Any, Any, Any]:
    """Return the policy and its two processors."""
    import torch  # noqa: PLC0415 - an optional package
    from lerobot.configs.policies import PreTrainedConfig  # noqa: PLC0415 - as above
    from lerobot.policies.factory import get_policy_class, make_pre_post_processors  # noqa: PLC0415 - as above

    config = PreTrainedConfig.from_pretrained(path)
    config.device = options.get("device") or ("cuda" if torch.cuda.is_available() else "cpu")
    if "n_action_steps" in options:
        config.n_action_steps = options["n_action_steps"]
    policy = get_policy_class(config.type).from_pretrained(path, config=config)
    overrides = {"device_processor": {"device": config.device}}
    before, after = make_pre_post_processors(config, pretrained_path=path, preprocessor_overrides=overrides)
    return policy, before, after


class LerobotPolicy(AdaptedPolicy):
    """A LeRobot policy; each row has its own queues of observations and actions, and its own random numbers.

    Rows are shallow copies of the policy, with the same weights. They act sequentially: in a batch, the last
    bits of the actions would depend on the number of rows.

    Args:
        policy: The policy.
        before: The processor of observations.
        after: The processor of actions.
        env_spec: The spaces of the environment.

    Raises:
        PolicyLoadError: The environment lacks an input of the policy, or its action space does not match.
    """

    row_wise = True
    resets = True

    def __init__(self, policy: Any, before: Any, after: Any, env_spec: EnvSpec) -> None:
        import torch  # noqa: PLC0415 - loaded by now

        super().__init__(policy)
        self._torch = torch
        self._before = before
        self._after = after
        self._action_space = env_spec.action_space
        self._observations = SpaceRows(env_spec.observation_space)
        self._actions = SpaceRows(env_spec.action_space)
        # With LeRobot's own steps, ACT samples nothing, and reads an observation only if it has no actions left.
        config = policy.config
        is_plain = all(type(step).__module__.startswith("lerobot.") for step in (*before.steps, *after.steps))
        self._samples = config.type not in _WITHOUT_NOISE or not is_plain
        self._has_queue = not self._samples and config.temporal_ensemble_coeff is None
        self._check_features(env_spec)
        self._rows = [_Row(policy, self._state_of(0))]

    def _check_features(self, env_spec: EnvSpec) -> None:
        config = self.wrapped.config
        given = self._batch(env_spec.observation_space.sample(), "")
        found = {name: tuple(value.shape[1:]) for name, value in given.items() if hasattr(value, "shape")}
        for name, feature in config.input_features.items():
            if name not in found:
                raise PolicyLoadError(
                    f"the policy needs {name} {tuple(feature.shape)}, but the environment gives "
                    f"{', '.join(f'{key} {shape}' for key, shape in found.items())}",
                    code="policy-space",
                    hint="use the observations that the policy was trained on: pixels, agent_pos, "
                    "environment_state, ...; a wrapper can rename them",
                )
        expected = tuple(config.output_features["action"].shape)
        if not isinstance(self._action_space, spaces.Box) or self._action_space.shape != expected:
            raise PolicyLoadError(
                f"the policy has actions of shape {expected}, but the environment has {self._action_space}",
                code="policy-space",
                hint="use the environment that the policy was trained in",
            )

    def seed(self, seed: int) -> None:
        self._rows[0].state = self._state_of(seed)

    def seed_rows(self, mask: Array, seeds: Array) -> None:
        self._use_rows(len(mask))
        for index in np.flatnonzero(mask).tolist():
            self._rows[index].state = self._state_of(int(seeds[index]))

    def reset(self, do_resets: Array | None = None) -> None:
        mask = [True] if do_resets is None else do_resets.tolist()
        self._use_rows(len(mask))
        for row, starts in zip(self._rows, mask, strict=True):
            if starts:
                row.policy.reset()

    def observe_task(self, row: int, task: str) -> None:
        self._rows[row].task = task

    def get_action(self, observation: Any) -> ActionAndInfo:
        return self._act(self._rows[0], observation), {}

    def get_actions(self, observations: Tree) -> ActionsAndInfos:
        samples = self._observations.split(observations)
        actions = [self._act(row, sample) for row, sample in zip(self._rows, samples, strict=True)]
        return self._actions.stack(actions), {}

    def _act(self, row: _Row, observation: Any) -> Any:
        with self._torch.inference_mode(), self._sampling_from(row):
            batch: dict[str, Any] = {}
            if not (self._has_queue and row.policy._action_queue):  # noqa: SLF001 - it has no public name
                batch = self._before(self._batch(observation, row.task))
            action = self._after(row.policy.select_action(batch))
        return action[0].cpu().numpy().astype(self._action_space.dtype)

    def _batch(self, observation: Any, task: str) -> dict[str, Any]:
        """Return an observation with LeRobot's names and a batch dimension."""
        from lerobot.envs.utils import preprocess_observation  # noqa: PLC0415 - loaded by now

        if not isinstance(observation, Mapping):
            observation = {"agent_pos": observation}
        # Copies: the environment's own arrays may change later, and torch warns if they are read-only.
        rows = map_tree(lambda value: np.array(value)[None], observation)
        return {**preprocess_observation(rows), "task": [task]}

    @contextmanager
    def _sampling_from(self, row: _Row) -> Iterator[None]:
        """Sample from the row's random numbers: LeRobot's policies use torch's global generator."""
        if not self._samples:
            yield
            return
        device = self.wrapped.config.device
        cuda = self._torch.cuda if str(device).startswith("cuda") else None
        outside = self._torch.get_rng_state()
        self._torch.set_rng_state(row.state[0])
        if cuda is not None:
            cuda.set_rng_state(row.state[1], device)
        yield
        row.state = (self._torch.get_rng_state(), None if cuda is None else cuda.get_rng_state(device))
        self._torch.set_rng_state(outside)

    def _state_of(self, seed: int) -> tuple[Any, Any]:
        """Return the states of generators with this seed: on the CPU, and on the policy's CUDA device or None."""
        device = self.wrapped.config.device
        cuda = None
        if str(device).startswith("cuda"):
            cuda = self._torch.Generator(device).manual_seed(seed).get_state()
        return self._torch.Generator().manual_seed(seed).get_state(), cuda

    def _use_rows(self, count: int) -> None:
        del self._rows[count:]
        while len(self._rows) < count:
            row = _Row(copy.copy(self.wrapped), self._state_of(0))
            row.policy.reset()
            self._rows.append(row)


@dataclass(slots=True)
class _Row:
    policy: Any  # A shallow copy of the policy.
    state: tuple[Any, Any]  # Of the generators on the CPU and on the CUDA device.
    task: str = ""
