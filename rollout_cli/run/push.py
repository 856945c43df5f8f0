"""push(): upload a complete dataset to the Hugging Face Hub in one commit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rollout_cli.dataset.layout import AnyPath
from rollout_cli.dataset.verify import verify_dataset
from rollout_cli.errors import StorageError, UsageError
from rollout_cli.reports.card import write_card
from rollout_cli.sources.hub import http_errors, hub
from rollout_cli.sources.remote import RemotePath, folder_of

_HINTS = {
    401: "set HF_TOKEN, or run `hf auth login`, with a token that may write",
    403: "use a token that may write to this repository, or another OWNER",
    404: "check the names of the repository and the branch",
}
"""What to do after an answer with this status."""


@dataclass(frozen=True, slots=True)
class PushSummary:
    """The web address of a pushed dataset, its URI for `load`, the commit, and the number of episodes.

    Example:
        >>> summary = rollout_cli.push("data", "me/cartpole")  # doctest: +SKIP
        >>> rollout_cli.load(summary.uri)  # doctest: +SKIP
    """

    address: str
    uri: str
    commit: str
    episodes: int


def push(
    path: AnyPath, repository: str, *, private: bool = False, revision: str | None = None
) -> PushSummary:
    """Upload a dataset to the Hugging Face Hub, as one commit.

    The files replace those of a dataset that was pushed before; other files of the repository stay. A missing
    repository, branch or card is created.

    Args:
        path: The local folder of a complete dataset.
        repository: `OWNER/NAME`.
        private: True to create a private repository.
        revision: The branch; None for the default one.

    Raises:
        DatasetFormatError: If the folder is not a dataset.
        StorageError: If the Hub cannot be reached, or refuses the upload.
        UsageError: If the dataset is a URI, incomplete or damaged, if `repository` has another form, if it is public
            although `private` is true, or if the package huggingface_hub is missing.

    Example:
        >>> rollout_cli.push("data", "me/cartpole", private=True).uri  # doctest: +SKIP
        'hf://datasets/me/cartpole'
    """
    library = hub()
    root = folder_of(path)
    if isinstance(root, RemotePath) or repository.count("/") != 1:
        raise UsageError(
            f"cannot push {root} to {repository!r}, expected a local folder and OWNER/NAME",
            code="push-arguments",
            hint="write, for example, `rollout push data me/cartpole`",
        )
    episodes = _complete_episodes(root)
    if not (root / "README.md").exists():
        write_card(root)
    found = [root / "README.md", *(root / "data").rglob("*"), *(root / "meta").rglob("*")]
    names = {path.relative_to(root).as_posix() for path in found if path.is_file() and path.name[0] != "."}
    target = {"repo_id": repository, "repo_type": "dataset"}
    api = library.HfApi()
    with _requests(f"{repository} at {api.endpoint}"):
        address = str(api.create_repo(**target, private=private, exist_ok=True))
        if private and not api.repo_info(**target).private:
            raise UsageError(
                f"{repository} exists and is public, expected a private repository",
                code="push-public",
                hint="make it private in its settings on the Hub, or omit {private}",
            )
        if revision is not None:
            api.create_branch(**target, branch=revision, exist_ok=True)
        stored = api.list_repo_files(**target, revision=revision)
        stale = {name for name in stored if name.startswith(("data/", "meta/"))} - names
        commit = api.create_commit(
            **target,
            operations=[
                *map(library.CommitOperationDelete, sorted(stale)),
                *(library.CommitOperationAdd(name, root / name) for name in sorted(names)),
            ],
            commit_message=f"Push {episodes:,} episodes by rollout",
            revision=revision,
        )
    branch = (revision or "").replace("/", "%2F")
    return PushSummary(
        address=f"{address}/tree/{branch}" if branch else address,
        uri=f"hf://datasets/{repository}" + (f"@{branch}" if branch else ""),
        commit=commit.oid,
        episodes=episodes,
    )


def _complete_episodes(root: Path) -> int:
    """Return the number of episodes; raise UsageError unless the dataset is complete and has no faults."""
    report = verify_dataset(root, quick=True)
    if report.faults or report.info["status"] != "complete":
        problem = report.faults[0] if report.faults else f"its status is {report.info['status']!r}"
        raise UsageError(
            f"{root} is not a complete dataset: {problem}",
            code="push-incomplete",
            hint="continue its run with {resume=True}, or list its faults with `rollout verify`",
        )
    episodes: int = report.info["episodes"]
    return episodes


@contextmanager
def _requests(where: str) -> Iterator[None]:
    """Turn an error of the Hub or of the network into a `StorageError` of one line."""
    try:
        yield
    except http_errors() as error:
        # In a thread of the library, the error of a request is the cause of a RuntimeError.
        cause = error.__cause__ if isinstance(error, RuntimeError) else error
        status = getattr(getattr(cause, "response", None), "status_code", 0)
        text = " ".join(str(getattr(cause, "server_message", None) or cause or error).split())[:400]
        raise StorageError(
            f"cannot push to {where}: {text}" + (f" ({status})" if status else ""),
            code="push-failed",
            hint=_HINTS.get(status, "check the name OWNER/NAME, the network and HF_ENDPOINT, and push again"),
        ) from error
