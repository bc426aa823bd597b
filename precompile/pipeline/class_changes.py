"""What became of the class map: a label is a number, and a new class may move those of others."""

from __future__ import annotations

_NAMED = 10


def changed_classes(old: tuple[str, ...] | None, new: tuple[str, ...] | None) -> tuple[list[str], list[str], list[str]]:
    """Names of classes that were added, that were removed, and whose label is another number now."""
    before = {name: number for number, name in enumerate(old or ())}
    after = {name: number for number, name in enumerate(new or ())}
    added = [name for name in after if name not in before]
    removed = [name for name in before if name not in after]
    return added, removed, [name for name in after if name in before and after[name] != before[name]]


def describe_classes(old: tuple[str, ...] | None, new: tuple[str, ...] | None) -> str:
    """One line for a person, empty when the class map is the same."""
    added, removed, renumbered = changed_classes(old, new)
    if not (added or removed or renumbered):
        return ""
    parts = [f"added {_some(added)}"] * bool(added) + [f"removed {_some(removed)}"] * bool(removed)
    if renumbered:
        parts.append(f"{len(renumbered)} others have another label now ({_some(renumbered)}); classes= fixes the list")
    return f"the classes changed: {', '.join(parts)}"


def _some(names: list[str]) -> str:
    return ", ".join(map(repr, names[:_NAMED])) + (", …" if len(names) > _NAMED else "")
