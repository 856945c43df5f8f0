"""FileScheme: how a kind of file becomes a policy; PolicyFiles: the bytes that it is made of.

The parent reads and hashes the files, and loads nothing of them. Every worker loads those very bytes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.errors import PolicyLoadError, misspelt
from rollout_cli.keywords import Keywords, Record
from rollout_cli.policies.adapt import adapt_policy
from rollout_cli.policies.policy import AdaptedPolicy
from rollout_cli.sources.loading import Source, imports_from, needing, reporting


@dataclass(frozen=True, slots=True)
class PolicyFiles:
    """What a policy is made of.

    Attributes:
        path: The absolute path of the file or folder that the SPEC names.
        contents: The bytes of the named file under "", of files beside it or of those of a folder under their
            relative names, and of a file that an option names under the option's name.
        folder: The working folder when they were read, where modules of the user's are.
        sha256: Of a lone file, its hash. Of several, the hash of the lines that `sha256sum` prints of them,
            in the order of their names.
    """

    path: str
    contents: Mapping[str, bytes] = field(repr=False)
    folder: str
    sha256: str

    @property
    def data(self) -> bytes:
        """The bytes of the named file."""
        return self.contents[""]


def read_files(spec: str, others: Mapping[str, Path]) -> PolicyFiles:
    """Read the file or folder of a SPEC, and other files by their names; PolicyLoadError where that fails."""
    sources = {name: Source.read(str(path), PolicyLoadError) for name, path in others.items()}
    if not Path(spec).is_dir():
        sources = {"": Source.read(spec, PolicyLoadError), **sources}
    lines = "".join(f"{source.sha256}  {name}\n" for name, source in sorted(sources.items()))
    digest = sha256(lines.encode()).hexdigest()
    if sources.keys() == {""}:
        digest = str(sources[""].sha256)
    contents = {name: source.data or b"" for name, source in sources.items()}
    return PolicyFiles(str(Path.cwd() / spec), contents, str(Path.cwd()), digest)


@dataclass(frozen=True, slots=True)
class TrainingEnv:
    """The environment that a policy was trained in.

    Attributes:
        spec: Its SPEC.
        kwargs: Its arguments.
        wrappers: SPECs of its wrappers, the innermost first, with their arguments.
    """

    spec: str
    kwargs: Keywords
    wrappers: Sequence[tuple[str, Keywords]]


class LoadPolicy(Protocol):
    """What a scheme loads a policy with, in each worker."""

    def __call__(
        self, files: PolicyFiles, options: Keywords, env_spec: EnvSpec, *, deterministic: bool
    ) -> Any:
        """Return a policy object, which is adapted as the user's own ones are, or an AdaptedPolicy.

        Libraries are imported here alone, and whatever this raises becomes a PolicyLoadError.
        """


def _nothing(_: Any) -> Record:
    return {}


@dataclass(frozen=True, slots=True)
class FileScheme:
    """A kind of policy file. Called with the path in a SPEC and with options, it returns a source.

    Attributes:
        name: What stands before the colon of a SPEC.
        summary: What it loads, in one line.
        load: Makes the policy; a function of a module, since sources are pickled.
        options: By name, the type of an argument that `--policy-kwargs` gives: `bool`, `int`, `float`, `str`,
            or `Path` for one that names a file, which is read, hashed and recorded too.
        takes_folder: Whether a SPEC names a folder.
        needs: By module that `load` imports, the package that pip installs it by. Workers share torch.
        beside: Called with the path of a SPEC; returns by relative name the files to read beside it.
        about: Called with the files; returns what else the record says of them, such as versions.
        trained_in: Called with the files; returns the environment of the training. None where no file says
            it.
    """

    name: str
    summary: str
    load: LoadPolicy
    options: Mapping[str, type] = field(default_factory=dict)
    takes_folder: bool = False
    needs: Mapping[str, str] = field(default_factory=dict)
    beside: Callable[[Path], Mapping[str, Path]] = _nothing
    about: Callable[[PolicyFiles], Record] = _nothing
    trained_in: Callable[[PolicyFiles], TrainingEnv] | None = None

    def __call__(self, path: str, options: Keywords) -> FilePolicySource:
        """Read the files; PolicyLoadError for a missing one, or an option that it does not take."""
        if not path or (Path(path).is_dir() and not self.takes_folder):
            raise PolicyLoadError(
                f"the policy {self.name}:{path} names no file",
                code="policy-spec",
                hint=f"{self.name}:{'FOLDER' if self.takes_folder else 'FILE'} is {self.summary}",
            )
        others = {}
        absolute = {}
        for name, value in options.items():
            self._check_option(name, value)
            if self.options[name] is Path:
                others[name] = Path(value)
                absolute[name] = str(Path.cwd() / value)
        files = read_files(path, {**self.beside(Path(path)), **others})
        return FilePolicySource(self, files, {**options, **absolute})

    def _check_option(self, name: str, value: Any) -> None:
        if name not in self.options:
            raise PolicyLoadError(
                f"the policy scheme {self.name} takes no option {name!r}",
                code="policy-options",
                hint=misspelt(name, self.options) or f"it takes: {', '.join(self.options) or 'none'}",
            )
        option_type = self.options[name]
        kind = str if option_type is Path else option_type
        if type(value) is not kind:
            raise PolicyLoadError(
                f"the option {name} of the policy scheme {self.name} must be a {kind.__name__}, "
                f"got {value!r}",
                code="policy-options",
                hint=f"for example: {{policy_kwargs={name}={_EXAMPLES[option_type]}}}",
            )


_EXAMPLES = {bool: "true", int: "3", float: "0.5", str: "name", Path: "file.pkl"}


@dataclass(frozen=True, slots=True)
class FilePolicySource:
    """The source of a policy in files: it meets `PolicySource` for every `FileScheme`."""

    scheme: FileScheme
    files: PolicyFiles
    options: Keywords

    def trained_in(self) -> TrainingEnv | None:
        """Return the environment that the policy was trained in; None where its files do not say it.

        Raises:
            PolicyLoadError: If they say it, and it cannot be made again.
        """
        if self.scheme.trained_in is None:
            return None
        with self._reporting():
            return self.scheme.trained_in(self.files)

    def load(self, env_spec: EnvSpec, *, deterministic: bool = False) -> AdaptedPolicy:
        # The working folder may be a stranger's: it has no part in what the file alone may not run.
        is_trusted = self.options.get("trust", "trust" not in self.scheme.options)
        with self._reporting():
            for module, package in self.scheme.needs.items():
                with needing(package, module):
                    importlib.import_module(module)
        with self._reporting(), imports_from(self.files.folder if is_trusted else None):
            policy = self.scheme.load(self.files, self.options, env_spec, deterministic=deterministic)
        return adapt_policy(policy, env_spec, deterministic=deterministic)

    def describe(self) -> Record:
        with self._reporting():
            return {
                "scheme": self.scheme.name,
                "path": self.files.path,
                "sha256": self.files.sha256,
                "options": dict(self.options),
                **self.scheme.about(self.files),
            }

    def _reporting(self) -> AbstractContextManager[None]:
        return reporting(
            PolicyLoadError,
            f"{self.files.path} cannot be loaded as {self.scheme.summary}",
            code="policy-file-damaged",
        )
