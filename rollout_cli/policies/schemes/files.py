"""FileScheme, which loads policies from one kind of file, and PolicyFiles, the content of these files.

The parent process reads and hashes the files without loading them. Every worker loads the same bytes.
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
    """The files of a policy.

    Attributes:
        path: The absolute path of the file or folder in the SPEC.
        contents: The bytes of the files. The key is "" for the file of the SPEC, the relative name for files
            next to it or in a folder, and the option's name for a file of an option.
        folder: The working folder when the files were read, which has the user's modules.
        sha256: The hash of a single file. For several files, the hash of the output of `sha256sum`, sorted
            by name.
    """

    path: str
    contents: Mapping[str, bytes] = field(repr=False)
    folder: str
    sha256: str

    @property
    def data(self) -> bytes:
        """The bytes of the file in the SPEC."""
        return self.contents[""]


def read_files(spec: str, others: Mapping[str, Path]) -> PolicyFiles:
    """Read the file of a SPEC, unless it is a folder, and other files; raise PolicyLoadError if that fails."""
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
        spec: The SPEC of the environment.
        kwargs: Its keyword arguments.
        wrappers: The SPECs and keyword arguments of its wrappers, innermost first.
    """

    spec: str
    kwargs: Keywords
    wrappers: Sequence[tuple[str, Keywords]]


class LoadPolicy(Protocol):
    """The function of a scheme that loads a policy, in each worker."""

    def __call__(
        self, files: PolicyFiles, options: Keywords, env_spec: EnvSpec, *, deterministic: bool
    ) -> Any:
        """Return an AdaptedPolicy, or a policy object, which is adapted like the user's objects.

        Libraries may be imported only here. Any error becomes a PolicyLoadError.
        """


def _nothing(_: Any) -> Record:
    return {}


@dataclass(frozen=True, slots=True)
class FileScheme:
    """A kind of policy file. Called with the path in a SPEC and with options, it returns a source.

    Attributes:
        name: The name of the scheme, before the colon of a SPEC.
        summary: A noun phrase for the files that it loads.
        load: Creates the policy; a module-level function, because sources are pickled.
        options: The types of the arguments in `--policy-kwargs`, by name: `bool`, `int`, `float`, `str`, or
            `Path` for a file, which is also read, hashed and recorded.
        takes_folder: True if a SPEC may be a folder.
        needs: The pip packages of the modules that `load` imports, by module. Workers share torch.
        beside: Called with the path of a SPEC; returns additional files to read, by relative name.
        about: Called with the files; returns additional entries of the record, such as versions.
        trained_in: Called with the files; returns the training environment. None if the files of this kind do
            not contain it.
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
        """Read the files; raise PolicyLoadError for a missing file or an unknown option."""
        if not path or (Path(path).is_dir() and not self.takes_folder):
            raise PolicyLoadError(
                f"the policy {self.name}:{path} is not a file",
                code="policy-spec",
                hint=f"use {self.name}:{'FOLDER' if self.takes_folder else 'FILE'} for {self.summary}",
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
                f"the policy scheme {self.name} has no option {name!r}",
                code="policy-options",
                hint=misspelt(name, self.options) or f"use one of: {', '.join(self.options) or 'none'}",
            )
        option_type = self.options[name]
        kind = str if option_type is Path else option_type
        if type(value) is not kind:
            raise PolicyLoadError(
                f"the option {name} of the policy scheme {self.name} must be a {kind.__name__}, "
                f"got {value!r}",
                code="policy-options",
                hint=f"pass a value such as {{policy_kwargs={name}={_EXAMPLES[option_type]}}}",
            )


_EXAMPLES = {bool: "true", int: "3", float: "0.5", str: "name", Path: "file.pkl"}


@dataclass(frozen=True, slots=True)
class FilePolicySource:
    """The `PolicySource` of every `FileScheme`."""

    scheme: FileScheme
    files: PolicyFiles
    options: Keywords

    def trained_in(self) -> TrainingEnv | None:
        """Return the training environment; None if the files do not contain it.

        Raises:
            PolicyLoadError: The files contain an environment that cannot be rebuilt.
        """
        if self.scheme.trained_in is None:
            return None
        with self._reporting():
            return self.scheme.trained_in(self.files)

    def load(self, env_spec: EnvSpec, *, deterministic: bool = False) -> AdaptedPolicy:
        # The working folder may be untrusted: do not import from it unless the file itself may run code.
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
            f"cannot load {self.files.path} as {self.scheme.summary}",
            code="policy-file-damaged",
        )
