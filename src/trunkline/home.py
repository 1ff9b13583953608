"""The folder that an exchange owns: where it is, what is called what in it, and whether it is ours alone.

Does not read what is in it.

Invariant: after ``create`` nobody else can read or write there, and nothing that was there before for another purpose
was touched.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from trunkline.errors import ConfigError
from trunkline.key_files import KEYS_FOLDER


class Home:
    """The folder that an exchange owns, and the names in it. Nobody else may write there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "trunkline.toml"
        self.ready_file = path / "ready.json"
        self.operator_token_file = path / "operator.token"
        self.ledger_file = path / "ledger.sqlite"
        # Of the calls in it; it can be deleted at any time.
        self.index_file = path / "ledger.search.sqlite"
        self.run_folder = path / "run"
        self.logs_folder = path / "logs"
        # What an exchange in the background prints.
        self.output_file = path / "exchange.log"
        self.keys_folder = path / KEYS_FOLDER

    @classmethod
    def resolve(cls, option: str | None, environ: Mapping[str, str]) -> Home:
        """``--home``, else ``$TRUNKLINE_HOME``, else ``~/.trunkline``."""
        chosen = option or environ.get("TRUNKLINE_HOME") or "~/.trunkline"
        return cls(Path(os.path.abspath(Path(chosen).expanduser())))  # noqa: PTH100  (resolve() would follow links)

    @property
    def to_name(self) -> str:
        """What ``--home`` has to say so that other commands find this one; empty for the usual one.

        ``$TRUNKLINE_HOME`` may not be set where they are typed.
        """
        return "" if self.path == Home.resolve(None, {}).path else str(self.path)

    def create(self) -> None:
        """Make what is missing, close it to everybody else, and refuse a folder that is not ours alone."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.check()
            self._check_no_other_use()
            for folder in (self.path, self.run_folder, self.logs_folder, self.keys_folder):
                folder.mkdir(mode=0o700, exist_ok=True)
                if stat.S_IMODE(folder.stat().st_mode) != 0o700:
                    folder.chmod(0o700)
        except OSError as error:
            raise ConfigError(f"the home folder cannot be made: {error.strerror}", str(error.filename)) from None

    def _check_no_other_use(self) -> None:
        """Refuse a folder that is in use for something else: closing it to others would break that."""
        found = {entry.name for entry in self.path.iterdir()}
        made_first = {self.run_folder.name, self.logs_folder.name, self.keys_folder.name, self.output_file.name}
        marks = {self.config_file.name, self.ledger_file.name, self.operator_token_file.name}
        # One that begins at this moment has made its folders, and none of those yet.
        begun = {self.run_folder.name, self.logs_folder.name, self.keys_folder.name}
        if found - made_first and not found & marks and not begun <= found:
            text = "it has files, and none of an exchange; choose a new or an empty folder with --home"
            raise ConfigError(text, str(self.path))

    def check(self) -> None:
        """Refuse a folder that belongs to, or can be written by, somebody else."""
        status = self.path.stat()
        if status.st_uid != os.geteuid():
            raise ConfigError(f"it belongs to user {status.st_uid}; choose another one with --home", str(self.path))
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ConfigError(f"others can write to the home folder; chmod 700 {self.path}", str(self.path))
