"""docs/operations.md: every command in it exists, and those that need no other machine do what the page says."""

from __future__ import annotations

import json
import re
import shlex
import shutil

import click
import filelock
import pytest
from builds import REPOSITORY, Outcome, save_image
from schedule_site import Site

import precompile
from precompile.cli.main import cli

PAGE = (REPOSITORY / "docs" / "operations.md").read_text()
BLOCKS = re.findall(r"^```\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
LINES = [line for block in BLOCKS for line in block.splitlines()]
COMMANDS = [line for line in LINES if line.startswith("precompile ")]
MENTIONS = re.findall(r"`(precompile [a-z][^`]*)`", PAGE)


def command_of(line: str) -> tuple[click.Command, str, list[str]]:
    program, name, *arguments = shlex.split(line)
    assert program == "precompile"
    command = cli.get_command(click.Context(cli), name)
    assert command is not None, f"no command {name!r}"
    return command, name, arguments


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_is_complete(line: str) -> None:
    command, name, arguments = command_of(line)
    command.make_context(name, arguments)


@pytest.mark.parametrize("line", sorted(set(MENTIONS)))
def test_a_mentioned_command_has_these_options(line: str) -> None:
    command, _, arguments = command_of(line)
    command.make_parser(click.Context(command)).parse_args(arguments)


def test_the_options_in_the_text_exist() -> None:
    known = {name for command in ("build", "info", "verify", "prune", "diff", "doctor", "recipes")
             for param in command_of(f"precompile {command}")[0].params for name in param.opts}  # fmt: skip
    theirs = {"--delete", "--exclude", "--mail-type"}  # of rsync and Slurm
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE)) - theirs <= known


def test_links_and_named_files_exist() -> None:
    targets = re.findall(r"\]\((?!http)([^)#]+)\)", PAGE)
    assert targets
    for target in targets:
        assert (REPOSITORY / "docs" / target).exists(), target
    examples = (REPOSITORY / "scripts" / "schedule").iterdir()
    for name in {path.name for path in examples} - {"precompile-build.timer"}:
        assert f"`{name}`" in PAGE


def block(start: str) -> str:
    """The one script whose first line, or the line after `set -e`, begins so."""
    found = [text for text in BLOCKS if re.match(rf"(set -e\n)?{re.escape(start)}", text)]
    assert len(found) == 1, start
    return found[0]


def need(site: Site, program: str) -> None:
    if shutil.which(program, path=site.environment["PATH"]) is None:
        pytest.skip(f"needs {program}")


def build(site: Site, *arguments: str) -> Outcome:
    return site.run(
        site.bin / "precompile", "build", site.raw, site.out, "--size", "32", "--crop", "32", "--quiet", "--json",
        "--log-file", site.logs / "photos.jsonl", *arguments,
    )  # fmt: skip


def test_jq_reads_the_summary_and_the_log(site: Site) -> None:
    need(site, "jq")
    (site.raw / "train" / "class0" / "bad.png").write_bytes(b"")
    done = build(site)
    assert done.code == 3
    (site.logs / "photos.summary.json").write_text(done.out * 2)  # as cron collects them
    summary, errors, quarantined, total = [site.run("sh", "-c", line) for line in LINES if line.startswith("jq ")]
    assert [row.split("\t")[:5] for row in summary.out.splitlines()] == [["1", "7", "6", "0", "1"]] * 2
    assert errors.out.split("\t")[1:] == ["new failures", "1 of the inputs failed for the first time\n"]
    time, sample, message = quarantined.out.rstrip("\n").split("\t")
    assert time.startswith("20")
    assert sample == "train/class0/bad.png"
    assert message
    assert float(total.out) > 0


def test_jq_reads_errors(site: Site) -> None:
    need(site, "jq")
    for path in site.raw.rglob("*.jpg"):
        path.write_bytes(b"")
    assert build(site).code == 1
    line = next(line for line in LINES if '"error"' in line)
    assert "inputs failed" in site.run("sh", "-c", line).out


def two_generations(site: Site) -> tuple[str, str]:
    """Their fingerprints."""
    first = build(site)
    save_image(site.raw / "train" / "class0" / "more.png")
    second = build(site)
    assert (first.code, second.code) == (0, 0), (first, second)
    return json.loads(first.out)["fingerprint"], json.loads(second.out)["fingerprint"]


def test_going_back(site: Site) -> None:
    need(site, "flock")
    earlier, later = two_generations(site)
    script = block("GENERATION=").replace("GENERATION=000006", "GENERATION=000001")
    assert site.run("bash", "-c", script) == Outcome(0, "", "")
    assert precompile.CompiledDataset(site.out).fingerprint == earlier
    assert site.run(site.bin / "precompile", "verify", site.out, "--full").code == 0
    again = build(site)
    assert (again.code, json.loads(again.out)["generation"]) == (0, 2)
    assert precompile.CompiledDataset(site.out).fingerprint == later
    assert not list(site.out.glob(".*.tmp"))


def test_backing_up(site: Site) -> None:
    need(site, "rsync")
    _, later = two_generations(site)
    backup = site.root / "backup"
    script = block('exec 9>>"$OUT/.precompile.lock"; flock -n 9 || exit 75\nrsync')
    for _ in range(2):
        assert site.run("bash", "-c", script, environment={"BACKUP": str(backup)}) == Outcome(0, "", "")
        assert precompile.CompiledDataset(backup).fingerprint == later
        assert site.run(site.bin / "precompile", "prune", site.out, "--keep", "1").code == 0
    assert [path.name for path in (backup / "generations").iterdir()] == ["000002"]


@pytest.mark.parametrize("start", ["GENERATION=", 'exec 9>>"$OUT/.precompile.lock"; flock -n 9 || exit 75\nrsync'])
def test_scripts_change_nothing_while_a_build_is_at_work(site: Site, start: str) -> None:
    need(site, "flock")
    site.out.mkdir()
    lock = site.out / ".precompile.lock"
    with filelock.FileLock(lock):
        done = site.run("bash", "-c", block(start), environment={"BACKUP": str(site.root / "backup")})
    assert done == Outcome(75, "", "")
    assert list(site.out.iterdir()) == [lock]
    assert not (site.root / "backup").exists()


def test_a_script_keeps_builds_out(site: Site) -> None:
    need(site, "flock")
    site.out.mkdir()
    lock_line = next(line for line in LINES if line.startswith("exec 9>>"))
    done = site.run("bash", "-c", f'{lock_line}\nprecompile build "$SOURCE" "$OUT" --quiet')
    assert done.code == 75
