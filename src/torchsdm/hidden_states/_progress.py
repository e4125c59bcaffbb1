"""Progress bars whose rate and remaining time are those of the work done now."""

from __future__ import annotations

from tqdm.auto import tqdm


class Progress(tqdm):
    """A bar on a terminal and nothing in a pipe, or nothing at all without ``shown``."""

    def __init__(self, total: int | None, unit: str, description: str | None = None, *, shown: bool = True) -> None:
        super().__init__(total=total, desc=description, unit=unit, disable=None if shown else True)

    def skip_to(self, n: int) -> None:
        """Move on to n without work: what an earlier run did, or what need not be done."""
        self.skip(n - self.n)

    def skip(self, n: int) -> None:
        """Move on by n without work."""
        if not self.disable:
            self.n += n
            self.last_print_n += n
            self.initial += n  # the rate is (n - initial) / elapsed
            self.refresh()
