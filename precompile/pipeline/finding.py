"""What a check of a dataset found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be."""

    what: str
    file: str
    """The file that is damaged; for a difference from the source, the raw file."""
    sample: str = ""
    """The key of the sample, where one is concerned."""
    shard: str = ""
    """The name of the shard that is concerned."""

    @property
    def is_in_shard(self) -> bool:
        """Whether the shard's own file is damaged, so that compiling its samples again mends it."""
        return bool(self.shard) and Path(self.file).name == self.shard

    @property
    def where(self) -> str:
        sample = f"{self.sample} in " if self.sample else ""
        shard = f" (shard {self.shard})" if self.shard and not self.is_in_shard else ""
        return f"{sample}{self.file}{shard}"

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"
