"""What a cluster may lose while it works, and what comes out of a task that failed on its own account."""

from __future__ import annotations

from typing import Any

from torchsdm.errors import ClusterError

MOST_LOSSES = 5  #: times that one piece of work is begun again before it is taken to be what kills its workers


class Lost(Exception):
    """A worker, its node or its answer is gone; the work can be done again."""


def answer_of(ray: Any, reference: Any) -> Any:
    """The answer of a task; ``Lost`` if it has to be asked again, and the task's own error if it raised one."""
    errors = ray.exceptions
    gone = (
        *(errors.RayActorError, errors.WorkerCrashedError, errors.NodeDiedError, errors.ObjectLostError),
        *(errors.OutOfMemoryError, errors.LocalRayletDiedError),
    )
    try:
        return ray.get(reference)
    except gone as error:
        raise Lost(str(error)) from error
    except errors.RayTaskError as error:
        raise error.cause from None


def check_losses(n_losses: int, what: str, error: Lost) -> None:
    """Give up a piece of work that was lost too often."""
    if n_losses >= MOST_LOSSES:
        raise ClusterError(f"{what} was lost {n_losses} times with the worker it ran on. The last time: {error}")
