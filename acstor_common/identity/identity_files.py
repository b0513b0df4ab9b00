# SPDX-License-Identifier: Apache-2.0
"""Files with this host's certificate and key, authorities and signers.

The folder's name is a symbolic link to the set of files in use, and a new set replaces the link, so
a reader never mixes two sets.  Operators may instead use a plain folder.
"""

import contextlib
import logging
import os
import pathlib
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

from acstor_common import errors
from acstor_common.identity import certificates
from acstor_common.identity import signing
from acstor_common.model import clocks
from acstor_common.model import ids
from acstor_common.util import atomic_file

LOG = logging.getLogger(__name__)

CHECK_INTERVAL_S = 2.0
MAX_FILE_BYTES = 256 * 1024
SET_PREFIX = ".identity-"

Signers = tuple[signing.PublicKey, ...]
_Stamp = tuple[int, int, int, int]
_Stamps = tuple[_Stamp | None, ...]


class IdentityPaths(NamedTuple):
    """Paths of the files."""

    ca: pathlib.Path
    certificate: pathlib.Path
    key: pathlib.Path
    signers: pathlib.Path


class IdentitySet(NamedTuple):
    """Contents of the files (PEM); empty if a file is missing."""

    ca: bytes
    certificate: bytes
    key: bytes
    signers: bytes


class Identity(NamedTuple):
    """Identity of this host, and trusted keys."""

    certificate: certificates.HostCertificate | None = None  # None if there is no valid one
    key: bytes = b""
    ca: bytes = b""
    signers: Signers = ()  # keys that sign v-node tables and tasks


def files_in(folder: pathlib.Path) -> IdentityPaths:
    """Return the paths of the files in a folder."""
    return IdentityPaths(*(folder / f"{name}.pem" for name in ("ca", "cert", "key", "signers")))


class IdentityFiles:
    """Reads this host's files; thread-safe."""

    def __init__(self, host: ids.HostId, files: IdentityPaths, clock: clocks.Clock = time) -> None:
        self.files = files
        self.host, self._clock = host, clock
        self._lock = threading.Lock()
        self._refreshed_s = -CHECK_INTERVAL_S
        self._stamps: _Stamps | None = None
        self._identity = Identity()
        self._logged: set[str] = set()

    def current_credentials(self) -> Identity:
        """Return the current set, at most CHECK_INTERVAL_S old."""
        with self._lock:
            if self._clock.monotonic() - self._refreshed_s >= CHECK_INTERVAL_S:
                self._refresh()
            return self._identity

    def invalidate(self) -> None:
        """Read the files again on next use."""
        with self._lock:
            self._refreshed_s = -CHECK_INTERVAL_S

    def signer_keys(self) -> Signers:
        """Return the trusted signing keys of the decision service."""
        return self.current_credentials().signers

    def _refresh(self) -> None:
        self._refreshed_s = self._clock.monotonic()
        stamps = tuple(_stamp(path) for path in self.files)
        if stamps == self._stamps:
            return
        self._stamps = stamps
        self._identity = self._read()

    def _read(self) -> Identity:
        found = IdentitySet(*(self._bytes_of(path) for path in self.files))
        signers: Signers = ()
        certificate = None
        if found.signers:
            with self._log_errors(self.files.signers):
                signers = signing.read_public_keys(found.signers)
        if found.certificate and found.key and found.ca:
            with self._log_errors(self.files.ca):
                certificates.read_ca(found.ca)
                with self._log_errors(self.files.certificate):
                    certificate = check_set(found, self.host)
        return Identity(certificate, found.key if certificate else b"", found.ca, signers)

    def _bytes_of(self, path: pathlib.Path) -> bytes:
        try:
            with path.open("rb") as file:
                return file.read(MAX_FILE_BYTES)
        except FileNotFoundError:
            return b""
        except OSError as e:
            self._log_once(f"{path}: {e.strerror}")
            return b""

    @contextlib.contextmanager
    def _log_errors(self, path: pathlib.Path) -> Iterator[None]:
        try:
            yield
        except errors.NotAuthenticated as e:
            self._log_once(f"{path}: {e}")

    def _log_once(self, what: str) -> None:
        if what not in self._logged:
            self._logged = {*self._logged, what} if len(self._logged) < 64 else {what}
            LOG.warning("%s; it is not used", what)


def check_set(found: IdentitySet, host: ids.HostId) -> certificates.HostCertificate:
    """Return a set's certificate if it is this host's, with its key, or raise NotAuthenticated."""
    certificate = certificates.read_host_certificate(found.certificate, found.ca)
    what = f"the certificate of {certificate.host}"
    if certificate.host != host:
        raise errors.NotAuthenticated(what, f"this host is {host}")
    if signing.read_key(found.key).public_key() != certificate.public_key:
        raise errors.NotAuthenticated(what, "the key beside it does not match it")
    return certificate


def write(folder: pathlib.Path, new: IdentitySet) -> None:
    """Replace the set durably, or keep it (OSError); the old files stay until the next call."""
    before = os.path.realpath(folder)
    made = pathlib.Path(tempfile.mkdtemp(prefix=SET_PREFIX, dir=folder.parent))
    try:
        names = (path.name for path in files_in(made))
        atomic_file.write_secrets(made, dict(zip(names, new, strict=True)))
        _link(folder, made)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    for old in folder.parent.glob(f"{SET_PREFIX}*"):
        if old.name != made.name and str(old) != before:
            shutil.rmtree(old, ignore_errors=True)


def _link(folder: pathlib.Path, made: pathlib.Path) -> None:
    link = made / "link"
    link.symlink_to(made.name)
    if folder.is_dir() and not folder.is_symlink():  # a link cannot replace it
        by_hand = folder.with_name(f"{folder.name}.by-hand")
        shutil.rmtree(by_hand, ignore_errors=True)
        folder.rename(by_hand)
    link.replace(folder)
    atomic_file.sync_folder(folder.parent)


def _stamp(path: pathlib.Path) -> _Stamp | None:
    """Return what changes with a file; ctime also changes when it becomes readable."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
