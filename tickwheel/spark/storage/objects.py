"""Files in an object store: Amazon S3 and what speaks like it, Google Cloud Storage, Azure. By obstore."""

from __future__ import annotations

import importlib
import importlib.util
import io
import os
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from tickwheel.spark.errors import (
    BadPlace,
    StorageDenied,
    StorageError,
    StorageMissing,
    StorageUnreachable,
)
from tickwheel.spark.storage.places import Place
from tickwheel.spark.storage.storage import Found, NewFile

if TYPE_CHECKING:
    import pyarrow as pa
    from obstore.store import ObjectStore

#: Options of the HTTP client; all others are those of the store.
_CLIENT_OPTIONS: Final = frozenset(
    {
        "allow_http", "allow_invalid_certificates", "connect_timeout", "http1_only", "http2_only",
        "pool_idle_timeout", "pool_max_idle_per_host", "proxy_ca_certificate", "proxy_excludes", "proxy_url",
        "timeout", "user_agent",
    }
)  # fmt: skip
_ENDPOINTS: Final = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "azure": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
    "gs": (),
}
_ENDPOINT_NAME: Final = re.compile(r"^(aws_|azure_|azure_storage_)?endpoint(_url)?$")
#: A file of more bytes is sent in parts.
_ONE_PUT_BYTES: Final = 32 << 20
_PART_BYTES: Final = 16 << 20
_PARTS_AT_ONCE: Final = 4
_PATIENCE: Final = timedelta(seconds=8)
#: How often something is created of which it is not known whether it was; the store's own client tries ten times each.
_TRIES: Final = 3
_PAUSE_S: Final = 0.5
_DELETED_AT_ONCE: Final = 1_000

_STATUS: Final = re.compile(r"status code: (\d+)")
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
_MESSAGE: Final = re.compile(r"<Message>([^<]*)</Message>", re.DOTALL)
_NO_BUCKET: Final = re.compile(r"NoSuchBucket|ContainerNotFound|bucket does not exist|AccountNotFound")
_NO_CREDENTIALS: Final = re.compile(
    r"169\.254\.169\.254|metadata\.google|/latest/(api|meta-data)/|token request|No credentials",
    re.IGNORECASE,
)
_DENIED: Final = re.compile(
    r"AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|InvalidToken|AuthenticationFailed|"
    r"AuthorizationFailure|permission|not authorized|unauthenticated",
    re.IGNORECASE,
)
_BAD_OPTION: Final = re.compile(
    r"Config error|credential error|Invalid Access Key|Configuration key|Invalid key|Missing ", re.IGNORECASE
)
_NO_ANSWER: Final = re.compile(r"HTTP error|error sending request|timed? ?out|dns error", re.IGNORECASE)


def require_obstore() -> None:
    """Raises ``StorageMissing``."""
    try:
        found = importlib.util.find_spec("obstore")
    except ValueError:  # an import that was forbidden, as tests do
        found = None
    if found is None:
        raise StorageMissing("Object stores need obstore, which cannot be imported.")


def _obstore() -> Any:
    """Also in a task, where it may be missing. Raises ``StorageMissing``."""
    require_obstore()
    return importlib.import_module("obstore")


@dataclass(frozen=True, slots=True)
class ObjectFiles:
    """See `Storage`. An object is there whole or not at all; none is ever renamed."""

    place: Place

    @property
    def shown(self) -> str:
        return self.place.shown

    def shown_name(self, name: str) -> str:
        return f"{self.place.shown}/{name}"

    def reach(self) -> None:
        obstore = _obstore()
        with self._explained("cannot be used"):
            impatient = _connected(self.place, _PATIENCE)
            next(iter(obstore.list(impatient, chunk_size=1)), None)

    def read(self, name: str) -> bytes | None:
        obstore = _obstore()
        try:
            with self._explained(f"{name} cannot be read"):
                return bytes(obstore.get(self._store, name).bytes())
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        obstore = _obstore()
        with self._explained(f"{name} cannot be written"):
            obstore.put(self._store, name, content, use_multipart=False)

    def create(self, name: str, content: bytes) -> bool:
        """See `Storage`. A put that fails may have been done, or be done later: it is tried again until the store says
        what is there."""
        obstore = _obstore()
        from obstore.exceptions import AlreadyExistsError

        for tried in range(1, _TRIES + 1):
            try:
                with self._explained(f"{name} cannot be made"):
                    try:
                        obstore.put(self._store, name, content, mode="create", use_multipart=False)
                    except AlreadyExistsError:
                        found = self.read(name)
                        if found is not None:
                            return found == content
                    else:
                        return True
            except (StorageError, FileNotFoundError) as error:
                is_surely_not_done = tried == 1 and isinstance(error, StorageDenied | BadPlace)
                if is_surely_not_done:
                    raise
                failed = error
            else:
                failed = StorageError(f"{self.shown_name(name)} is said to be there, and cannot be read.")
            time.sleep(_PAUSE_S * tried)
        raise StorageError(str(failed), advice=StorageError.advice)

    def found(self, folder: str) -> Iterator[Found]:
        obstore = _obstore()
        with self._explained(f"{folder} cannot be listed"):
            for listed in obstore.list(self._store, folder or None):
                for one in listed:
                    modified_ms = round(one["last_modified"].timestamp() * 1_000)
                    yield Found(one["path"], one["size"], modified_ms)

    def remove(self, names: Sequence[str]) -> None:
        obstore = _obstore()
        for start in range(0, len(names), _DELETED_AT_ONCE):
            with self._explained("cannot be deleted from"):
                try:
                    obstore.delete(self._store, list(names[start : start + _DELETED_AT_ONCE]))
                except FileNotFoundError as error:  # Google's store says so; S3 does not mind
                    if _NO_BUCKET.search(str(error)):
                        raise
                    self._remove_each(names[start : start + _DELETED_AT_ONCE])

    def _remove_each(self, names: Sequence[str]) -> None:
        obstore = _obstore()
        for name in names:
            try:
                obstore.delete(self._store, name)
            except FileNotFoundError:
                continue

    def new_file(self, name: str) -> NewFile:
        return _ObjectFile(self, name, tempfile.TemporaryFile())

    def open(self, name: str) -> Any:
        return _opened(self, name)

    @contextmanager
    def filled(self, last: str) -> Iterator[Path]:
        """See `Storage`. Each object is replaced whole; between the first and the last, new ones are beside earlier
        ones. What is not there any more is deleted at the end."""
        earlier = {one.name for one in self.found("")}
        with tempfile.TemporaryDirectory(prefix="tickwheel-") as folder:
            made = Path(folder)
            yield made
            names = sorted(path.relative_to(made).as_posix() for path in made.rglob("*") if path.is_file())
            for name in [*(one for one in names if one != last), last]:
                with (made / name).open("rb") as file:
                    self.put(name, file)
        self.remove(sorted(earlier - set(names)))

    def put(self, name: str, file: BinaryIO) -> int:
        """Sends a file from its beginning on; how many bytes it has."""
        obstore = _obstore()
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        with self._explained(f"{name} cannot be written"):
            if size <= _ONE_PUT_BYTES:
                obstore.put(self._store, name, file.read(), use_multipart=False)
            else:
                obstore.put(
                    self._store,
                    name,
                    file,
                    use_multipart=True,
                    chunk_size=_PART_BYTES,
                    max_concurrency=_PARTS_AT_ONCE,
                )
        return size

    def range(self, name: str, start: int, length: int) -> Any:
        """Some bytes of an object. Raises ``FileNotFoundError``."""
        obstore = _obstore()
        with self._explained(f"{name} cannot be read"):
            return obstore.get_range(self._store, name, start=start, length=length)

    def size(self, name: str) -> int:
        """Raises ``FileNotFoundError``."""
        obstore = _obstore()
        with self._explained(f"{name} cannot be read"):
            found: int = obstore.head(self._store, name)["size"]
            return found

    @property
    def _store(self) -> ObjectStore:
        return _connected(self.place, None)

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Raises errors of ours, and ``FileNotFoundError`` for a name that is not there."""
        from obstore.exceptions import BaseError

        try:
            yield
        except FileNotFoundError as error:
            if _NO_BUCKET.search(str(error)):
                raise _explained(self.place, what, error) from None
            raise FileNotFoundError(f"{self.shown}: {what}: it is not there.") from None
        except (BaseError, PermissionError, ValueError) as error:
            raise _explained(self.place, what, error) from None


@dataclass(slots=True)
class _ObjectFile:
    """See `NewFile`. On the local disk it has no name, so that nothing is left of it when its process is killed."""

    storage: ObjectFiles
    name: str
    file: Any

    def close(self) -> int:
        with self.file:
            return self.storage.put(self.name, self.file)

    def discard(self) -> None:
        self.file.close()


class _Ranges(io.RawIOBase):
    """An object as a file of which parts are read, each by one request."""

    def __init__(self, storage: ObjectFiles, name: str) -> None:
        self._storage, self._name = storage, name
        self._size, self._at = storage.size(name), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def size(self) -> int:
        return self._size

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._size - self._at)
        length = left if size is None or size < 0 else min(size, left)
        if not length:
            return b""
        content = self._storage.range(self._name, self._at, length)
        self._at += length
        found: bytes = memoryview(content).tobytes()
        return found


@contextmanager
def _opened(storage: ObjectFiles, name: str) -> Iterator[pa.PythonFile]:
    import pyarrow as pa

    with pa.PythonFile(_Ranges(storage, name), mode="r") as file:
        yield file


@lru_cache(maxsize=16)
def _connected(place: Place, patience: timedelta | None) -> ObjectStore:
    """Connections of this process. ``patience``: else the client tries again for minutes. Raises ``BadPlace``."""
    from obstore.store import AzureStore, GCSStore, S3Store

    client: dict[str, Any] = {name: value for name, value in place.options if name in _CLIENT_OPTIONS}
    config: dict[str, Any] = {name: value for name, value in place.options if name not in _CLIENT_OPTIONS}
    if "allow_http" not in client and _is_plain(place):
        client["allow_http"] = True
    retry: dict[str, Any] = {}
    if patience is not None:
        client.setdefault("connect_timeout", "4s")
        retry = {"retry_config": {"max_retries": 2, "retry_timeout": patience}}
    if place.kind == "s3":
        config.setdefault(
            "region", os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
        )
        return S3Store(place.host, prefix=place.path or None, config=config, client_options=client, **retry)  # type: ignore[arg-type]
    if place.kind == "gs":
        return GCSStore(place.host, prefix=place.path or None, config=config, client_options=client, **retry)  # type: ignore[arg-type]
    container, _, host = place.host.partition("@")
    account = host.partition(".")[0]
    return AzureStore(
        container,
        prefix=place.path or None,
        account_name=account,
        config=config,  # type: ignore[arg-type]
        client_options=client,  # type: ignore[arg-type]
        **retry,
    )


def _is_plain(place: Place) -> bool:
    """Whether the store is named by an address without TLS: then that is meant."""
    given = [value for name, value in place.options if _ENDPOINT_NAME.match(name)]
    found = given or [os.environ[name] for name in _ENDPOINTS[place.kind] if os.environ.get(name)]
    return bool(found) and found[0].startswith("http://")


def _explained(place: Place, what: str, error: Exception) -> StorageError:
    """An error of obstore as one of ours, short and without secrets."""
    full = str(error)
    said = place.hidden(_short(full))
    text = f"{place.shown}: {what}: {said}."
    status = found[1] if (found := _STATUS.search(full)) is not None else ""
    if _NO_BUCKET.search(full):
        return BadPlace(
            f"There is no {'container' if place.kind == 'azure' else 'bucket'} {place.host}: {said}."
        )
    if _NO_CREDENTIALS.search(full):
        return StorageDenied(
            f"{place.shown}: no credentials were found, and this machine has none of its own."
        )
    if status in ("401", "403") or isinstance(error, PermissionError) or _DENIED.search(full):
        return StorageDenied(text)
    if status == "301" or "PermanentRedirect" in full:
        return BadPlace(text, advice="The bucket is in another region: name it with --fs region=….")
    if isinstance(error, ValueError) or _BAD_OPTION.search(full):
        return BadPlace(text, advice="Check the options --fs and the variables of the storage.")
    if not status and _NO_ANSWER.search(full):
        return StorageUnreachable(text)
    return StorageError(text)


def _short(text: str) -> str:
    """The first line, without addresses' questions, times and XML."""
    first = text.partition("\n\nDebug source")[0]
    code, message = _CODE.search(first), _MESSAGE.search(first)
    if code is not None:
        return f"{code[1]}: {message[1].strip().rstrip('.')}" if message is not None else code[1]
    line = first.partition("\n")[0]
    line = re.sub(r"\?[^\s]*", "", line)
    line = re.sub(r" in [\d.]+(ns|µs|ms|s)\b", "", line)
    return re.sub(r",? +after \d+ retries.*? - ", ": ", line).strip().rstrip(".")
