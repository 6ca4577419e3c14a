"""How a server is reached: with or without TLS, with or without a token."""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc

from ._address import check_address
from ._checks import check_known, header, text
from ._status import failed
from ._wire import options
from .errors import CroupierError

#: What gRPC says about a certificate that no authority in tls_ca has signed.
_DISTRUSTED = "CERTIFICATE_VERIFY_FAILED"
#: Every PEM text contains this.
_PEM = "-----BEGIN "
#: What gRPC says about a server that speaks plain HTTP. It depends on which part of the answer gRPC sees first.
_NO_GRPC = ("http2 header with status", "Data frame with END_STREAM flag received")
#: The variables in which gRPC looks for a proxy, in its order.
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")


@dataclass(frozen=True)
class Access:
    """tls_ca: PEM file of authorities, one of which signed the server's certificate. With it the connection uses TLS.
    tls_cert, tls_key: PEM files of the client's own certificate and key, for a server that asks for them.
    tls_name: the name in the server's certificate, if `address` has another one.
    auth_token: the token that the server asks for, or a function that returns it. It is sent as it is, so use TLS.
    credentials: `grpc.ChannelCredentials` in place of the files.

    Files are read, and functions are called, for each connection. So a file that is replaced takes effect at the next
    one.
    """

    address: str
    tls_ca: str | pathlib.Path | None = None
    tls_cert: str | pathlib.Path | None = None
    tls_key: str | pathlib.Path | None = None
    tls_name: str | None = None
    auth_token: str | Callable[[], str] | None = field(default=None, repr=False)
    credentials: grpc.ChannelCredentials | None = None

    def __post_init__(self) -> None:
        check_address(self.address)
        self._check_files()
        if self.auth_token is not None and not callable(self.auth_token):
            if not isinstance(self.auth_token, str):
                raise TypeError(f"auth_token is {type(self.auth_token).__name__}, must be a string or a function that returns one")
            header("auth_token", self.auth_token.strip())
        if self.tls_name is not None:
            text("tls_name", self.tls_name)
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key must be given together")
        if self.tls_ca is None and (self.tls_cert is not None or (self.tls_name is not None and self.credentials is None)):
            raise ValueError("tls_cert, tls_key and tls_name need tls_ca, the authorities that sign the server's certificate")
        if self.credentials is not None and not isinstance(self.credentials, grpc.ChannelCredentials):
            raise TypeError(f"credentials is {type(self.credentials).__name__}, must be a grpc.ChannelCredentials")
        if self.tls_ca is not None and self.credentials is not None:
            raise ValueError("give tls_ca or credentials, not both")
        if self.address.startswith("unix:") and (self.tls_ca is not None or self.credentials is not None):
            raise ValueError("TLS works only with HOST:PORT; the server's Unix socket has no TLS, leave out tls_ca and credentials")

    def _check_files(self) -> None:
        for name in ("tls_ca", "tls_cert", "tls_key"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, (str, os.PathLike)):
                raise TypeError(f"{name} is {type(value).__name__}, must be a file path")
            if isinstance(value, str) and _PEM in value:
                # An error of the system would show this text, and it may be the key.
                raise ValueError(f"{name} contains PEM data, must be a file path; to give PEM data use credentials=grpc.ssl_channel_credentials(...)")

    def channel(self, of: Any = grpc) -> Any:
        """A channel of `grpc`, or of `grpc.aio`."""
        chosen = options(self.address)
        if self.tls_name is not None:
            chosen.append(("grpc.ssl_target_name_override", self.tls_name))
        credentials = self.credentials
        if self.tls_ca is not None:
            credentials = grpc.ssl_channel_credentials(self._read("tls_ca"), self._read("tls_key"), self._read("tls_cert"))
        if credentials is None:
            return of.insecure_channel(self.address, options=chosen)
        return of.secure_channel(self.address, credentials, options=chosen)

    def hint(self, error: BaseException) -> str:
        """What may be wrong with the options if a call ended with this error."""
        if not isinstance(error, grpc.RpcError):
            return ""
        if error.code() == grpc.StatusCode.UNAUTHENTICATED:
            return "; the server requires a token, give auth_token=" if self.auth_token is None else "; check the token that auth_token= gives"
        details = str(error.details())
        if any(said in details for said in _NO_GRPC):
            return "; this address does not serve gRPC, is it the admin port?"
        if error.code() != grpc.StatusCode.UNAVAILABLE or self.address.startswith("unix:"):
            return ""
        if proxy := _proxy(details):
            return (f"; the connection goes through the proxy that the environment variable {proxy} names; to connect directly, add the server's host to "
                    "no_grpc_proxy")
        if "WRONG_VERSION_NUMBER" in details and self.tls_ca is not None:
            return "; the server does not use TLS, leave out tls_ca="
        if "Hostname Verification Check failed" in details:
            return "; the server's certificate is for another name, give that name as tls_name="
        if is_distrusted(error):
            return ("; the server's certificate is not trusted, give tls_ca= the authority that signed it" if self.tls_ca is None else
                    "; none of the authorities in tls_ca= has signed the server's certificate, or one of the two has expired")
        if not _closed(details):
            return ""
        if self.credentials is not None or self.tls_cert is not None:
            return ""
        if self.tls_ca is not None:
            return "; the server may require a client certificate, give tls_cert= and tls_key="
        return "; the server may require TLS, give tls_ca="

    def raise_hinted(self, error: BaseException) -> None:
        """Raises an error about a call that did not begin together with what may be wrong with the options, if that is
        known."""
        if isinstance(error, CroupierError) and (cause := error.__cause__) and (hint := self.hint(cause)):
            raise failed(f"{error}{hint}", error) from cause

    def metadata(self, traceparent: str = "") -> tuple[tuple[str, str], ...] | None:
        """The metadata of a call. If there is none, it is None and not empty: gRPC for threads accepts both, gRPC for
        asyncio only None."""
        said = [("traceparent", traceparent)] if traceparent else []
        if token := self._token():
            said.append(("authorization", f"Bearer {token}"))
        return tuple(said) or None

    def _token(self) -> str | None:
        if not callable(self.auth_token):
            return self.auth_token and self.auth_token.strip()
        try:
            given = self.auth_token()
        except Exception as error:
            raise CroupierError(f"auth_token: the function raised {error!r}") from error
        if given is None:
            return None
        if not isinstance(given, str):
            # For bytes, their Python representation would be sent.
            raise CroupierError(f"auth_token: the function returned {type(given).__name__}, must return a string")
        try:
            return header("what the function returned", given.strip())
        except ValueError as error:
            raise CroupierError(f"auth_token: {error}") from error

    def _read(self, name: str) -> bytes | None:
        path = getattr(self, name)
        try:
            found = None if path is None else pathlib.Path(path).read_bytes()
        except (OSError, ValueError) as error:
            raise CroupierError(f"{name}: {error}") from error
        # Otherwise gRPC would report it at each attempt, as long as it waits for the server.
        if found is not None and _PEM.encode() not in found:
            raise CroupierError(f"{name}: {path} contains no PEM data")
        return found


def is_distrusted(error: BaseException | None) -> bool:
    """Whether the server's certificate is not trusted here. Waiting does not help then."""
    return isinstance(error, grpc.RpcError) and _DISTRUSTED in str(error.details())


def _closed(details: str) -> bool:
    """Whether a server was there and closed the connection. A server with TLS does so if it misses something."""
    return any(said in details for said in ("Socket closed", "reset by peer", "Unwrap failed"))


def _proxy(details: str) -> str:
    """The environment variable with the proxy that an error is about. Empty if the connection was a direct one: the
    proxy's port is then not in the error."""
    name = next((name for name in _PROXIES if os.environ.get(name)), "")
    port = re.search(r":(\d+)/?$", os.environ.get(name, ""))
    return name if "HTTP proxy" in details or f":{port[1] if port else 443}:" in details else ""


def access_of(what: str, address: str, given: Mapping[str, Any], known: type) -> Access:
    """The access options among options given by name. Other names are an error unless they are `known`."""
    check_known(what, given, known.__annotations__, "option")
    return Access(address, **given)
