"""Folders: of results, and the one that is kept between processes and has to belong to the user alone."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

from .files import as_path, no_folder
from .warnings import warn_user

__all__ = ["cache_folder", "is_private", "made_folder"]


def made_folder(folder: Any) -> Path:
    """Folder of results, created if it is missing; an argument `folder`.

    Raises
    ------
    TypeError, ValueError
        If it is no path, or a file stands in its place.
    PermissionError
        If the user may not write there.
    """
    given = as_path(folder, "folder")
    try:
        given.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise no_folder(given) from None
    if not os.access(given, os.W_OK):
        raise PermissionError(
            f"{given} may not be written to by this user; change its mode, or name another folder"
        )
    return given


def cache_folder() -> Path | None:
    """Folder of cached things: ``SIDEBAYES_CACHE``, or the user's cache folder.

    Returns
    -------
    Path or None
        None if ``SIDEBAYES_CACHE`` is ``off``, or if the user has no home. The folder need not exist.
    """
    own = os.environ.get("SIDEBAYES_CACHE", "")
    if own.lower() == "off":
        return None
    if own:
        return Path(own).absolute()
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (base if base.is_absolute() else Path.home() / ".cache") / "sidebayes"
    except RuntimeError:  # no home is known
        return None


def is_private(folder: Path) -> bool:
    """Whether only this user writes in a folder, which is created with mode 0700 if it is missing.

    One that others can write is never repaired, since its owner may want it so: a warning says what
    to do. One that can be neither read nor created is passed over in silence.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError:
        return False
    if os.name != "posix":  # there, the system itself guards a user's folders
        return True
    if found.st_uid != os.geteuid():
        remedy = "set SIDEBAYES_CACHE to a folder of your own, or to off"
        _refuse(folder, f"belongs to another user (id {found.st_uid})", remedy)
        return False
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(found.st_mode)
        _refuse(folder, f"can be written by others (mode {mode:o})", f"run 'chmod 700 {folder}'")
        return False
    return True


def _refuse(folder: Path, reason: str, remedy: str) -> None:
    warn_user(
        f"the cache folder {folder} {reason}, so nothing is read from it or kept in it; {remedy}"
    )
