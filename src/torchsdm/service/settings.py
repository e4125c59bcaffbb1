"""Settings of a service: where it listens, what it allows, and how much."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from torchsdm.errors import InvalidInputError
from torchsdm.validation import check_positive

MEGABYTE = 1_000_000
MOST_INPUTS = 256  #: in one request, by default
MOST_EXAMPLES = 1000  #: of one explanation


@dataclass(frozen=True)
class ServiceSettings:
    """Settings of a service; the defaults are those of ``sdm serve``."""

    host: str = "127.0.0.1"
    """Address to listen on. Anything but loopback needs a token."""
    port: int = 8000
    """0 picks a free one."""
    token: str | None = None
    """Required for changes; if others can reach the service, for everything but health."""
    allowed_hosts: tuple[str, ...] = ()
    """Names, besides those of loopback, that requests may be for; needed behind a proxy, and with them a token."""
    texts: bool = False
    """Whether explanations have the texts of training examples."""
    watch: bool = False
    """Whether the model's directory is looked at every second, and a new model in it served."""
    guard_file: Path | None = None
    """Where the drift guard is kept between runs."""
    guard_by_source: bool = False
    """Whether each source of inputs has a guard of its own."""
    check_rate: float | None = None
    """The share of the admitted answers to texts that is drawn for people to check; None draws none."""
    check_per_week: float | None = None
    """About how many are drawn in a week."""
    max_inputs: int = MOST_INPUTS
    """Most inputs per request."""
    max_body: int = 64 * MEGABYTE
    """Most bytes of a request's body."""
    max_waiting: int = 256
    """Most requests that wait; further ones get status 429."""
    batch_rows: int = 1024
    """Most states that are decided on at once; requests are taken together up to this."""
    body_seconds: float = 30.0
    """Longest time that a client may take to send a request's head, and then its body."""
    drain_seconds: float = 30.0
    """Longest time for waiting requests when the service shuts down."""

    def __post_init__(self) -> None:
        for name in ("max_inputs", "max_body", "max_waiting", "batch_rows"):
            check_positive(getattr(self, name), name, "ServiceSettings", integer=True)
        for name in ("check_rate", "check_per_week"):
            if getattr(self, name) is not None:
                check_positive(getattr(self, name), name, "ServiceSettings")
        for name in ("body_seconds", "drain_seconds"):
            check_positive(getattr(self, name), name, "ServiceSettings")
        token = self.token
        if token is not None and (len(token) < 16 or not token.isascii() or not token.isprintable()):
            raise InvalidInputError(
                "A token must have at least 16 printable ASCII characters. Make one: "
                "python -c 'import secrets; print(secrets.token_urlsafe())'."
            )
        if not self.is_local and self.token is None:
            reached = self.allowed_hosts[0] if self.allowed_hosts else self.host
            raise InvalidInputError(
                f"{reached} can be reached by others, so a token is needed: put one into a file and name it with "
                "--token-file, or set TORCHSDM_TOKEN."
            )

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the service. Another name means a proxy, which others can reach."""
        if self.allowed_hosts:
            return False
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
