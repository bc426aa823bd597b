"""The source and the recipe of a build against the generation before."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precompile.errors import DatasetNotFoundError, FormatError
from precompile.format.generation import generation_dir, shard_path
from precompile.format.manifest import MANIFEST_NAME, Manifest
from precompile.pipeline.earlier import open_earlier
from precompile.pipeline.options import BuildOptions
from precompile.pipeline.plan import Plan
from precompile.pipeline.recipe import Recipe
from precompile.pipeline.reuse import NONE, Reuse, find_reuse


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a build wants, and the generation that it finds."""

    out: Path
    recipe: Recipe
    recipe_digest: str
    """Of all that changes what is stored of one file."""
    options: BuildOptions
    before: Manifest | None

    def is_unchanged(self, plan: Plan, root: str) -> bool:
        """Whether there is nothing to do: the same source in the same place, the same recipe, all files there."""
        before, options = self.before, self.options
        if (
            before is None
            or options.rebuild
            or options.distrusted_shards
            or (options.retry_quarantined and before.quarantined)
        ):
            return False
        if before.recipe_digest != self.recipe_digest or self._changed_keys(before):
            return False
        if before.source.get("digest") != plan.digest or before.source.get("root") != root:
            return False
        directory = generation_dir(self.out, before.generation)
        paths = [(shard_path(self.out, shard.file), shard.bytes) for shard in before.shards]
        paths += [(directory / name, item.bytes) for name, item in before.index.items()]
        return (directory / MANIFEST_NAME).exists() and all(
            path.exists() and path.stat().st_size == num_bytes for path, num_bytes in paths
        )

    def find_reuse(self, plan: Plan) -> tuple[Reuse, str]:
        """What can be taken over, and a line that says why everything is compiled, if it is."""
        before, nothing = self.before, Reuse.nothing(len(plan))
        if before is None or self.options.rebuild:
            return nothing, ""
        changed = self._changed_keys(before)
        if before.recipe_digest != self.recipe_digest:
            return nothing, f"the recipe changed ({', '.join(changed) or 'parameters'}): compiling everything again"
        try:
            earlier = open_earlier(self.out, before.generation)
        except (FormatError, DatasetNotFoundError) as error:
            return nothing, f"the index cannot be used ({error}): compiling everything again"
        distrusted = frozenset(self.options.distrusted_shards)
        reuse = find_reuse(plan, earlier, distrusted=distrusted, retry_quarantined=self.options.retry_quarantined)
        return reuse, _describe(reuse, changed)

    def _changed_keys(self, before: Manifest) -> list[str]:
        now = self.recipe.model_dump(mode="json")
        usual = Recipe().model_dump(mode="json")
        then = {key: before.recipe.get(key, usual[key]) for key in now}
        return [f"{key} {_plain(then[key])} -> {_plain(value)}" for key, value in now.items() if then[key] != value]


def _describe(reuse: Reuse, changed: list[str]) -> str:
    """What an incremental build found, in one line."""
    work = int(reuse.is_work.sum())
    damaged = int((reuse.damaged != NONE).sum())
    copied = int((reuse.copies != NONE).sum())
    touched = int(reuse.likely.sum())
    parts = [
        f"{len(reuse.rows) - work - len(reuse.failed)} inputs unchanged",
        *(
            [
                f"{work - copied - damaged} new, changed or touched"
                + (f" ({touched} of known name and size)" if touched else "")
            ]
        ),
        *([f"{damaged} of damaged shards"] if damaged else []),
        *([f"{copied} copied out of shards that are mostly dead or small"] if copied else []),
        *([f"{len(reuse.failed)} stay in quarantine (--retry-quarantined tries them again)"] if reuse.failed else []),
        *([f"changed in the recipe: {', '.join(changed)}"] if changed else []),
    ]
    return "; ".join(parts)


def _plain(value: Any) -> str:
    return str(value) if isinstance(value, int | float | str | None) else json.dumps(value)
