"""Sharing models: huggingface_hub's mixin over our directory format, and a card for each model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub import ModelCard, ModelHubMixin, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

from torchsdm.errors import ModelFileError
from torchsdm.model.card import TAGS

T = TypeVar("T", bound="HubModel")


class HubModel(ModelHubMixin, ABC, library_name="torchsdm", tags=list(TAGS)):
    """``save_pretrained``, ``from_pretrained`` and ``push_to_hub`` for a class that has ``save`` and ``load``.

    The mixin's own ``save_pretrained`` removes ``config.json`` before writing, so a crash would leave half a model;
    ours writes through ``save``, which replaces it atomically.
    """

    _hub_mixin_config: Any = {}  # noqa: RUF012  (set so that the mixin records no constructor arguments)

    @abstractmethod
    def save(self, path: str | Path) -> None:
        """Write the model to a directory."""

    @classmethod
    @abstractmethod
    def load(cls: type[T], path: str | Path) -> T:
        """Read a model from a directory."""

    @abstractmethod
    def model_card(self) -> str:
        """Describe the model in Markdown."""

    def save_pretrained(
        self, save_directory: str | Path, *, push_to_hub: bool = False, repo_id: str | None = None, **kwargs: Any
    ) -> str | None:
        """Write the model to a directory and, if asked, push it to a hub repository (by default named like it)."""
        self.save(save_directory)
        if not push_to_hub:
            return None
        kwargs.pop("config", None), kwargs.pop("model_card_kwargs", None)
        return str(self.push_to_hub(repo_id or Path(save_directory).name, **kwargs))

    def push_to_hub(self, repo_id: str, **kwargs: Any) -> str:
        """Upload the model as one commit; files of an older version are removed with it."""
        kwargs.setdefault("delete_patterns", ["*.safetensors", "*.sqlite"])
        return str(super().push_to_hub(repo_id, **kwargs))

    @classmethod
    def from_pretrained(
        cls: type[T],
        pretrained_model_name_or_path: str | Path,
        *,
        force_download: bool = False,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
        revision: str | None = None,
        **model_kwargs: Any,
    ) -> T:
        """Load a model from a directory, or from a hub repository by its name."""
        path = Path(pretrained_model_name_or_path)
        if not path.is_dir():
            try:
                path = Path(
                    snapshot_download(
                        str(pretrained_model_name_or_path),
                        revision=revision,
                        cache_dir=cache_dir,
                        force_download=force_download,
                        token=token,
                        local_files_only=local_files_only,
                    )
                )
            except (HfHubHTTPError, LocalEntryNotFoundError, ValueError, OSError) as error:
                raise ModelFileError(
                    f"{pretrained_model_name_or_path} is not a directory and cannot be loaded from the hub: {error}"
                ) from error
        return cls.load(path, **model_kwargs)

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        """The model card as a huggingface_hub object."""
        return ModelCard(self.model_card())
