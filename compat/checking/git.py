"""Runs git commands and returns their results as values. A revision that was not fetched is an error. git itself uses
the network only in a partial clone, to fetch missing objects."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

BLOB_BYTES_MAX = 16_000_000  # as for files, see inputs.FILE_BYTES_MAX
LINK_MODE = b"120000"
LINKS_MAX = 40  # chained symbolic links, as on Linux
GIT_TIMEOUT_S = 120  # per git command; with a long history it takes seconds


class GitFailed(Exception):
    """A git command failed, or its result cannot be used; the message gives the reason in one line, and the remedy if
    it is known."""


@dataclass(frozen=True, slots=True)
class FileChange:
    """The change of one file in one commit.

    `parent` is the commit's first parent, "" if it has none. `path` is the file's path after the commit, `before` its
    path before, which differs if the commit renamed the file. `blob` is the id of the new content, "" if the commit
    deleted the file, and `blob_before` that of the content before, "" if the commit added the file. `is_link`: the file
    is a symbolic link, before or after the commit, so the content is the path of its target.
    """

    commit: str
    parent: str
    path: str
    before: str
    blob: str
    blob_before: str
    is_link: bool


@dataclass(frozen=True, slots=True)
class GitTree:
    """Content of a commit.

    `files` maps path to blob (the id of the stored content). A symbolic link to a file of the tree has that file's
    blob; `other_links` are all other symbolic links, such as links to directories.
    """

    files: Mapping[str, str]
    submodules: tuple[str, ...] = ()
    other_links: tuple[str, ...] = ()

    def submodule_of(self, path: str) -> str | None:
        return next((location for location in self.submodules if path.startswith(f"{location}/")), None)


class GitRepository:
    """The git repository that contains a directory.

    Raises:
        GitFailed: there is no repository, or git is not installed.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        top = self._run("rev-parse", "--show-toplevel")
        if top.returncode:
            raise GitFailed(_no_repository(os.fsdecode(top.stderr), directory.absolute()))
        self.top = Path(os.path.realpath(os.fsdecode(top.stdout).rstrip("\n")))

    def commit(self, revision: str) -> str:
        """Returns the commit of a revision; for HEAD before the first commit, the empty tree.

        Raises:
            GitFailed: there is no such revision.
        """
        found = self._run("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        if found.returncode == 0 and revision:
            return os.fsdecode(found.stdout).strip()
        if revision == "HEAD" and self._run("symbolic-ref", "--quiet", "HEAD").returncode == 0:
            return os.fsdecode(self._output("hash-object", "-t", "tree", "--stdin")).strip()
        raise GitFailed(f"git knows no revision {revision!r}; {self._advice(revision)}")

    def _advice(self, revision: str) -> str:
        """Returns advice for an unknown revision. A clone in CI has one branch and often one commit; deepening it adds
        no other branch.
        """
        remote, slash, branch = revision.partition("/")
        remotes = os.fsdecode(self._run("remote").stdout).split()
        if slash and remote in remotes:
            return f"fetch it first: git fetch {remote} +{branch}:refs/remotes/{remote}/{branch}"
        if self.is_shallow():
            return "this clone is shallow: fetch its history (fetch-depth: 0, or git fetch --unshallow)"
        return "expected a branch, tag or commit of this repository, such as main or origin/main"

    def is_shallow(self) -> bool:
        return self._run("rev-parse", "--is-shallow-repository").stdout.strip() == b"true"

    def path_of(self, path: str) -> str | None:
        """Returns a file's path relative to the top of the repository, with forward slashes; None if the file is
        outside."""
        full = os.path.join(os.path.realpath(os.path.dirname(path) or "."), os.path.basename(path))  # noqa: PTH118,PTH119,PTH120
        try:
            return Path(full).relative_to(self.top).as_posix()
        except ValueError:
            return None

    def tree(self, commit: str) -> GitTree:
        """Returns the files, submodules and symbolic links of a commit."""
        listing = self._output("ls-tree", "-r", "-z", "--full-tree", commit)
        files: dict[str, str] = {}
        links: dict[str, str] = {}
        submodules = []
        for row in listing.split(b"\0"):
            if row:
                head, _, name = row.partition(b"\t")
                mode, kind, blob = head.split(b" ")
                path = os.fsdecode(name)
                if kind == b"commit":
                    submodules.append(path)
                else:
                    (links if mode == LINK_MODE else files)[path] = blob.decode()
        if links:
            targets = self.blobs(list(links.values()))
            files |= _resolve_links({path: os.fsdecode(targets[blob]) for path, blob in links.items()}, files)
        return GitTree(files, tuple(submodules), tuple(path for path in links if path not in files))

    def blobs(self, object_names: Sequence[str]) -> Mapping[str, bytes]:
        """Returns the contents of blobs (git's stored files) by their ids (`object_names`), read in one process. A blob
        longer than `BLOB_BYTES_MAX` is cut one byte after this length."""
        names = list(dict.fromkeys(object_names))
        if not names:
            return {}
        output = self._output("cat-file", "--batch", stdin="".join(f"{name}\n" for name in names).encode())
        found, at = {}, 0
        for name in names:
            end = output.index(b"\n", at)
            head = output[at:end].split(b" ")
            if len(head) != 3:
                raise GitFailed(f"git has no object {name}; if this is a partial clone, use a full clone")
            size = int(head[2])
            found[name] = output[end + 1 : end + 1 + min(size, BLOB_BYTES_MAX + 1)]
            at = end + 1 + size + 1
        return found

    def renames(self, commit: str) -> Mapping[str, str]:
        """Returns the files that were renamed since a commit, as a mapping from the path in the working tree to the
        path in the commit."""
        listing = self._output("diff", "--name-status", "-z", "-M", "--diff-filter=R", commit, "--")
        parts = [os.fsdecode(part) for part in listing.split(b"\0") if part]
        return {parts[at + 2]: parts[at + 1] for at in range(0, len(parts) - 2, 3)}

    def changed_files(self, commit: str) -> frozenset[str]:
        """Returns paths of the working tree that differ from a commit, including deleted files, and untracked files
        that git does not ignore."""
        changed = self._output("diff", "--name-only", "-z", "--no-renames", commit, "--")
        untracked = self._output("ls-files", "-z", "--others", "--exclude-standard", "--full-name", ":/")
        return frozenset(os.fsdecode(part) for part in (changed + untracked).split(b"\0") if part)

    def history(self, commit: str, patterns: Sequence[str]) -> Iterator[FileChange]:
        """Yields the changes of files in the history of a commit, newest first. The history has only first parents; the
        changes of a merge are those against its first parent.

        Args:
            patterns: git's pathspecs; only changes of matching files are returned.
        """
        options = ("--raw", "-z", "-M", "--no-abbrev", "--format=format:%x01%H %P")
        listing = self._output("log", "--first-parent", "-m", *options, commit, "--", *patterns)
        for part in listing.split(b"\x01")[1:]:
            head, _, rows = part.partition(b"\n")
            commit_and_parents = os.fsdecode(head).split()
            yield from _changes(commit_and_parents, [os.fsdecode(row) for row in rows.split(b"\0")])

    def merge_base(self, revision: str) -> str:
        """Returns the merge base of a revision and HEAD, or the revision if they share no history."""
        commit = self.commit(revision)
        found = self._run("merge-base", commit, "HEAD")
        return os.fsdecode(found.stdout).strip() if found.returncode == 0 else commit

    def starting_point(self, revision: str) -> str:
        """Returns the commit from which a branch's changes are measured. For a branch or commit it is the merge base
        with HEAD; for a tag, the tag's own commit.

        Raises:
            GitFailed: there is no such revision.
        """
        ref_name = os.fsdecode(self._run("rev-parse", "--symbolic-full-name", "--end-of-options", revision).stdout)
        return self.commit(revision) if "refs/tags/" in ref_name else self.merge_base(revision)

    def _output(self, *arguments: str, stdin: bytes = b"") -> bytes:
        found = self._run(*arguments, stdin=stdin)
        if found.returncode:
            lines = os.fsdecode(found.stderr).strip().splitlines()
            raise GitFailed(f"git {arguments[0]} failed: {lines[-1] if lines else f'exit status {found.returncode}'}")
        return found.stdout

    def _run(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        import subprocess  # importing it takes a tenth of the command's time, and most baselines do not need it

        environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"}
        # With diff.relative, `git diff` would omit changed files outside of the working directory.
        options = ("-c", "core.quotePath=false", "-c", "diff.relative=false")
        command = ["git", "-C", str(self._directory), *options, *arguments]
        try:
            return subprocess.run(
                command, input=stdin, capture_output=True, env=environment, timeout=GIT_TIMEOUT_S, check=False
            )
        except FileNotFoundError:
            raise GitFailed("the program git is not installed, or not on the PATH") from None
        except (OSError, ValueError) as error:
            raise GitFailed(f"git cannot be run: {error}") from None
        except subprocess.TimeoutExpired:
            raise GitFailed(f"git {arguments[0]} did not end within {GIT_TIMEOUT_S} s") from None


def _no_repository(stderr: str, directory: Path) -> str:
    """Returns a message with the reason why git found no repository for a directory. In CI containers, the repository
    often belongs to another user, and git ignores it.

    Args:
        stderr: the error output of git.
    """
    if "dubious ownership" in stderr:
        # git's own suggestion names the top directory of the repository, and is quoted for the shell.
        commands = [line for line in map(str.strip, stderr.splitlines()) if line.startswith("git config ")]
        command = commands[0] if commands else "git config --global --add safe.directory '*'"
        return f"git does not trust {directory}, which another user owns; run {command}"
    return f"{directory} is in no git repository; run the check in one, or compare with files or a directory"


def _resolve_links(links: Mapping[str, str], files: Mapping[str, str]) -> dict[str, str]:
    """Returns the blob of the file to which each symbolic link leads, by the link's path. Links to missing files, out
    of the repository or through directories are omitted.

    Args:
        links: path and target of each symbolic link.
        files: path and blob of each regular file.
    """
    found = {}
    for path in links:
        target = path
        for _ in range(LINKS_MAX):
            if target not in links:
                break
            target = posixpath.normpath(posixpath.join(posixpath.dirname(target), links[target]))
        if target in files:
            found[path] = files[target]
    return found


def _changes(commit_and_parents: Sequence[str], rows: Sequence[str]) -> Iterator[FileChange]:
    """Yields the file changes of one commit, parsed from the output of `git log --raw -z`. A row has modes, blobs and a
    status; the path follows as the next row, or two paths for a rename."""
    commit, parent = (*commit_and_parents, "")[:2]
    at = 0
    while at < len(rows):
        if not rows[at].startswith(":"):
            at += 1
            continue
        mode_before, mode, blob_before, blob, status = rows[at].removeprefix(":").split(" ")
        path = rows[at + 1]
        is_moved = status[:1] in "RC"
        new = rows[at + 2] if is_moved else path
        yield FileChange(
            commit,
            parent,
            new,
            path,
            "" if status == "D" else blob,
            "" if status == "A" else blob_before,
            LINK_MODE.decode() in (mode_before, mode),
        )
        at += 3 if is_moved else 2
