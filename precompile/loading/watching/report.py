"""What was seen of a loader that stalls, as text for a person."""

from __future__ import annotations

import re

from precompile.loading.watching.dead_workers import OomKills, gather, how_it_ended, why
from precompile.loading.watching.hints import Facts, hints, waits_for_work
from precompile.loading.watching.observation import Observation, Seen, source_of
from precompile.loading.watching.python_stack import own_frame

_STATES = {
    "R": "running", "S": "sleeping", "D": "waiting for a disk (D)", "T": "stopped (T)",
    "t": "stopped by a debugger (t)", "Z": "dead (zombie)", "X": "gone", "I": "idle", "?": "state unknown",
}  # fmt: skip
_STARTED = re.compile(r'(multiprocessing/process\.py|threading\.py)", line \d+ in _bootstrap(_inner)?$')
_STACK_INDENT = "    "


def short(seen: Observation, seconds: float) -> str:
    """A line, and one for each worker."""
    lines = [f"waiting for data for {seconds:.0f} s ({seen.what})"]
    lines += [f"  {_summary(one, seen.at)}" for one in seen.workers or (seen.consumer,)]
    return "\n".join(lines + _others(seen))


def whole(seen: Observation, seconds: float, moved_after: float, timeout_seconds: float) -> str:
    """All of it: processes, stacks, what to do."""
    moved = f"; the last movement was after {moved_after:.1f} s" if moved_after >= 0.1 else ""
    lines = [f"{seen.what}: nothing came, after {seconds:.1f} s (timeout={timeout_seconds:g}{moved})"]
    lines += [f"  {_summary(one, seen.at)}" for one in (seen.consumer, *seen.workers)]
    lines += _others(seen)
    for one in (seen.consumer, *seen.workers):
        if one.stacks:
            lines.append(f"Stacks of {_name(one)}:")
            lines += [f"{_STACK_INDENT}{line}" for line in _shortened(one.stacks)]
    if advice := _advice(seen):  # at the end, where it is read
        lines += ["What to do:", *(f"  - {line}" for line in advice)]
    return "\n".join(lines)


def _shortened(stacks: str) -> list[str]:
    """Without how a worker was started: a forked one has the stack of its parent below its own."""
    lines, skips = [], False
    for line in stacks.strip().splitlines():
        skips = skips and line.startswith("  File")
        if not skips and line:
            lines.append(line)
        skips = skips or bool(_STARTED.search(line))
    return lines


def _others(seen: Observation) -> list[str]:
    return [f"  and {seen.num_more} more processes"] if seen.num_more else []


def _name(one: Seen) -> str:
    return f"{one.worker.name} (pid {one.worker.pid})"


def _summary(one: Seen, now: float) -> str:
    """`worker 0 (pid 7): sleeping in futex_wait of libgomp.so.1, 3 threads; at sample 5 'a.jpg' of ROOT for 9 s`."""
    if one.exit_code is not None:
        return f"{_name(one)}: dead, it {how_it_ended(one.exit_code)}"
    state = _STATES.get(one.state.letter, one.state.letter)
    if one.cpu_share >= 0.005:
        state += f" at {one.cpu_share:.0%} of a CPU"
    if one.waits_in and one.state.letter != "R":
        state += f" in {one.waits_in}"
    if one.library and one.library != "[vdso]":
        state += f", called by {one.library}"
    if one.file:
        state += f", on {one.file}"
    if one.state.letter not in "ZX?":
        state += f"; {one.state.num_threads} thread{'s' * (one.state.num_threads != 1)}"
    if waits_for_work(one.frames):
        state += "; waits for work"
    return f"{_name(one)}: {state}{_reading(one, now)}"


def _reading(one: Seen, now: float) -> str:
    activity = one.activity
    if activity is None or activity.first < 0:
        return ""
    key = f" {one.key!r}" if one.key else ""
    count = f" and {activity.count - 1} more" if activity.count > 1 else ""
    where = f" of {activity.root} (generation {activity.generation})" if activity.root else ""
    kind = f" on {one.filesystem}" if one.filesystem and activity.root else ""
    verb = "idle after" if activity.is_idle else "at"
    return f"; {verb} sample {activity.first}{key}{count}{where}{kind} for {max(0.0, now - activity.changed_at):.1f} s"


def _advice(seen: Observation) -> list[str]:
    """Each hint once, with all whom it is about."""
    by_hint: dict[str, list[str]] = {}
    for one in seen.workers:
        found = [_why_dead(one)] if one.exit_code is not None else hints(_facts(one))
        for hint in found:
            by_hint.setdefault(hint, []).append(_name(one))
    if not seen.workers or (seen.are_guessed and not by_hint):
        for hint in hints(_facts(seen.consumer)):
            by_hint.setdefault(hint, []).append(_name(seen.consumer))
    return [f"{', '.join(names)}: {hint}" for hint, names in by_hint.items()]


def _why_dead(one: Seen) -> str:
    assert one.exit_code is not None
    nothing = OomKills(None, None)
    return f"it {how_it_ended(one.exit_code)}. {why(one.exit_code, gather(nothing))}"


def _facts(one: Seen) -> Facts:
    own = own_frame(one.frames)
    return Facts(
        own=own, own_source=source_of(own) if own is not None else "",
        pid=one.worker.pid, letter=one.state.letter, cpu_share=one.cpu_share, waits_in=one.waits_in,
        library=one.library, file=one.file, filesystem=one.filesystem, frames=one.frames,
        source=source_of(one.frames[0]) if one.frames else "", has_stacks=one.stacks is not None,
        is_consumer=one.is_consumer, was_forked=one.worker.start_method == "fork",
    )  # fmt: skip
