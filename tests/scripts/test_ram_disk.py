"""scripts/ram_disk: the sizes add up, the commands exist, and training shares one copy; docs/ram_disk.md runs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from builds import REPOSITORY, Outcome, cli
from written import write

from precompile.cli.cache import command as cache_command
from precompile.format.schema import FieldSpec

RAM_DISK = REPOSITORY / "scripts" / "ram_disk"
KUBERNETES, DOCKER, TRAIN = (RAM_DISK / name for name in ("kubernetes-train.yaml", "docker-train.sh", "train.py"))
PAGE = (REPOSITORY / "docs" / "ram_disk.md").read_text()
IMAGE, MASK = FieldSpec("image", "uint8", (3, 8, 8)), FieldSpec("mask", "uint8", (1, 8, 8))
LABEL = FieldSpec("label", "int64", ())
MIB = 1 << 20

sys.path.insert(0, str(RAM_DISK))
import train  # noqa: E402


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A dataset of 48 small images; 32 of them are split train."""
    root = tmp_path / "data sets" / "photos.pc"
    write(root, [IMAGE, MASK, LABEL], 48, splits={"train": 32, "val": 16}, classes=("a", "b", "c"))
    return root


def gib(text: str) -> int:
    return int(re.fullmatch(r"(\d+)(Gi|GiB)", text)[1])  # type: ignore[index]


def cache_options(line: str) -> dict[str, Any]:
    """Options of a line `precompile cache …`, checked by the command itself."""
    program, group, name, *arguments = shlex.split(line)
    assert (program, group) == ("precompile", "cache")
    command = cache_command.get_command(click.Context(cache_command), name)
    assert command is not None, f"no command {name!r}"
    return command.make_context(name, arguments).params


def train_arguments(words: list[str]) -> tuple[int, list[str]]:
    """Ranks, and the arguments of train.py, of a torchrun line."""
    assert words[:3] == ["torchrun", "--standalone", "--nproc-per-node"]
    assert words[4] == "/app/train.py"
    return int(words[3]), words[5:]


# Kubernetes


def job() -> Any:
    (found,) = yaml.safe_load_all(KUBERNETES.read_text())
    assert (found["apiVersion"], found["kind"]) == ("batch/v1", "Job")
    return found["spec"]


def pod() -> Any:
    return job()["template"]["spec"]


def container() -> Any:
    (only,) = pod()["containers"]
    return only


def volumes() -> dict[str, Any]:
    return {volume["name"]: volume for volume in pod()["volumes"]}


def lines() -> list[list[str]]:
    shell, flags, script = container()["command"]
    assert (shell, flags) == ("/bin/sh", "-euc")  # e: what does not fit ends the container
    assert subprocess.run(["sh", "-n"], input=script, text=True).returncode == 0
    return [shlex.split(line) for line in script.splitlines()]


def test_kubernetes_sizes_add_up_as_the_comment_says() -> None:
    stated = re.findall(r"^# ([+=]?) +(\d+) GiB ", KUBERNETES.read_text(), re.MULTILINE)
    assert [sign for sign, _ in stated] == ["", "+", "=", "+", "+", "="]
    dataset, others, shm, training, spare, total = (int(number) for _, number in stated)
    assert dataset + others == shm
    assert shm + training + spare == total
    memory = volumes()["memory"]["emptyDir"]
    assert memory["medium"] == "Memory"
    assert gib(memory["sizeLimit"]) == shm > dataset
    resources = container()["resources"]
    assert resources["requests"] == resources["limits"]
    assert gib(resources["limits"]["memory"]) == total >= shm + training
    staged, _ = lines()
    reserve = gib(cache_options(shlex.join(staged))["reserve"])
    assert reserve == training
    assert total - reserve >= shm  # else a dataset that fits the volume would be refused


def test_kubernetes_commands_stage_what_training_reads() -> None:
    staged, (exec_word, *trained) = lines()
    assert exec_word == "exec"  # signals reach torchrun
    options = cache_options(shlex.join(staged))
    ranks, arguments = train_arguments(trained)
    found = train.parser().parse_args(arguments)
    assert ranks == container()["resources"]["limits"]["nvidia.com/gpu"]
    assert (str(options["out"]), options["split"], options["directory"]) == (found.out, found.split, found.cache)
    assert options["fields"] == "image"
    mounts = {mount["mountPath"]: mount for mount in container()["volumeMounts"]}
    source = mounts[str(options["out"].parent)]
    assert source["readOnly"]
    assert volumes()[source["name"]]["persistentVolumeClaim"]["readOnly"]
    assert mounts["/dev/shm"]["name"] == "memory"
    assert "/tmp" in mounts


def test_kubernetes_starts_again_in_the_same_pod_and_gives_no_rights_away() -> None:
    assert pod()["restartPolicy"] == "OnFailure"  # the volume, and what is staged, outlive it
    assert 0 < job()["backoffLimit"] < 10
    assert "podFailurePolicy" not in job()  # it would ask for restartPolicy: Never
    assert pod()["securityContext"]["runAsNonRoot"]
    assert pod()["securityContext"]["runAsUser"] > 0
    rights = container()["securityContext"]
    assert (rights["allowPrivilegeEscalation"], rights["readOnlyRootFilesystem"]) == (False, True)


# Docker

FAKE = f"""#!{sys.executable}
import json, sys
with open("docker.jsonl", "a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
"""


@dataclass(frozen=True)
class Run:
    """One call of `docker run`."""

    options: dict[str, str]
    script: str
    arguments: list[str]

    @classmethod
    def of(cls, words: list[str]) -> Run:
        assert words[0] == "run"
        image = words.index("precompile:0.1.0")
        pieces, options = list(words[1:image]), {}
        while pieces:
            name, sign, value = pieces.pop(0).partition("=")
            assert name.startswith("--")
            options[name] = value if sign or name == "--rm" else pieces.pop(0)
        shell, flags, script, name, *arguments = words[image + 1 :]
        assert (shell, flags, name) == ("sh", "-euc", "sh")
        return cls(options, script, arguments)

    def commands(self, tools: Path) -> list[list[str]]:
        """What the container's script calls."""
        for name in ("precompile", "torchrun"):
            path = tools / name
            path.write_text(FAKE.replace("sys.argv[1:]", f"[{name!r}, *sys.argv[1:]]"))
            path.chmod(0o755)
        run_here(tools, "sh", "-euc", self.script, "sh", *self.arguments)
        return calls(tools)

    def mebibytes(self, name: str) -> int:
        return int(re.fullmatch(r"(\d+)m", self.options[name])[1])  # type: ignore[index]


def run_here(tools: Path, *command: str | Path, **environment: str) -> Outcome:
    (tools / "docker.jsonl").unlink(missing_ok=True)
    env = {"PATH": f"{tools}:/usr/local/bin:/usr/bin:/bin", **environment}
    done = subprocess.run(
        [str(word) for word in command], env=env, cwd=tools, capture_output=True, text=True, timeout=60
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def calls(tools: Path) -> list[list[str]]:
    path = tools / "docker.jsonl"
    return [yaml.safe_load(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder with a `docker` that only notes how it was called."""
    folder = tmp_path / "tools"
    folder.mkdir()
    (folder / "docker").write_text(FAKE)
    (folder / "docker").chmod(0o755)
    return folder


@pytest.fixture
def docker(tools: Path, tmp_path: Path, out: Path) -> Callable[..., list[Run]]:
    """docker(mode, **environment): the runs of docker-train.sh, with a host's RAM disk in tmp_path."""

    def start(mode: str, **environment: str) -> list[Run]:
        done = run_here(tools, "sh", DOCKER, mode, out, CACHE=str(tmp_path / "host"), **environment)
        assert (done.code, done.err) == (0, ""), done
        return [Run.of(words) for words in calls(tools)]

    return start


def test_docker_with_a_copy_of_its_own(docker: Callable[..., list[Run]], tools: Path, out: Path) -> None:
    (run,) = docker("own")
    dataset_mib = sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) / MIB
    shm, memory = run.mebibytes("--shm-size"), run.mebibytes("--memory")
    assert shm >= dataset_mib + 4096
    assert memory >= shm + 16384
    assert run.mebibytes("--memory-swap") == memory  # no swap
    staged, trained = run.commands(tools)
    options = cache_options(shlex.join(staged))
    assert (options["out"], options["reserve"], options["fields"]) == (out, "16384MiB", "image")
    ranks, arguments = train_arguments(trained)
    assert (ranks, arguments) == (2, [str(out)])
    assert run.options["--gpus"] == "all"
    assert_of_this_user(run, out)


def test_docker_with_a_copy_for_several(
    docker: Callable[..., list[Run]], tools: Path, tmp_path: Path, out: Path
) -> None:
    first, second = docker("shared", GPUS="", RANKS="3")
    host = tmp_path / "host"
    assert host.stat().st_mode & 0o777 == 0o700
    for run in (first, second):
        assert run.options["--mount"] == f"type=bind,source={host},target=/dev/shm/precompile-{os.getuid()}"
        assert "--gpus" not in run.options
        assert_of_this_user(run, out)
    assert "--memory" not in first.options
    (staged,) = first.commands(tools)
    assert cache_options(shlex.join(staged))["reserve"] == "20480MiB"
    assert second.mebibytes("--memory") == second.mebibytes("--memory-swap") == 16384 + second.mebibytes("--shm-size")
    (trained,) = second.commands(tools)
    assert train_arguments(trained) == (3, [str(out)])


def assert_of_this_user(run: Run, out: Path) -> None:
    assert run.options["--user"] == f"{os.getuid()}:{os.getgid()}"
    assert run.options["--volume"] == f"{out}:{out}:ro"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["own"], r"expected: own\|shared OUT"),
        (["own", "{tmp}"], "not a compiled dataset, there is no manifest.json"),
        (["all", "{out}"], "expected own or shared, got all"),
    ],
)
def test_docker_script_refuses(tools: Path, tmp_path: Path, out: Path, arguments: list[str], message: str) -> None:
    done = run_here(tools, "sh", DOCKER, *[word.format(tmp=tmp_path, out=out) for word in arguments])
    assert done.code == 2
    assert re.search(message, done.err)
    assert not calls(tools)


def test_docker_script_ends_when_staging_fails(tools: Path, tmp_path: Path, out: Path) -> None:
    (tools / "docker").write_text(FAKE + "sys.exit(1)\n")
    done = run_here(tools, "sh", DOCKER, "shared", out, CACHE=str(tmp_path / "host"))
    assert done.code == 1
    assert len(calls(tools)) == 1


@pytest.mark.parametrize("shell", ["sh", "bash", "dash"])
def test_docker_script_is_plain_shell(shell: str, tools: Path) -> None:
    done = run_here(tools, "/usr/bin/env", shell, "-n", DOCKER)
    if done.code == 127:
        pytest.skip(f"needs {shell}")
    assert (done.code, done.err) == (0, "")


# Training


def entries(cache: Path) -> list[str]:
    return [path.name for path in cache.iterdir() if path.is_dir()]


@pytest.fixture
def train_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """train_here(*arguments): train.py in this process; returns what it prints."""

    def run(*arguments: str | Path) -> str:
        monkeypatch.setattr(sys, "argv", [str(TRAIN), *map(str, arguments), "--epochs", "1"])
        train.main()
        return capsys.readouterr().out

    return run


def test_one_process_stages_and_trains(train_here: Callable[..., str], tmp_path: Path, out: Path) -> None:
    read_from, result = train_here(out, "--cache", tmp_path / "cache").splitlines()
    (only,) = entries(tmp_path / "cache")
    assert read_from == f"read from {tmp_path / 'cache' / only}"
    assert re.fullmatch(r"1 rank: loss \d+\.\d\d, [\d,]+ images/s", result)


def test_ranks_share_one_copy(tmp_path: Path, out: Path) -> None:
    cache = tmp_path / "cache"
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         TRAIN, out, "--cache", cache, "--epochs", "1", "--batch-size", "8"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY), "CUDA_VISIBLE_DEVICES": "",
             "PYTHONFAULTHANDLER": "1"},  # a rank that aborts shows all its stacks
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (only,) = entries(cache)
    assert done.stdout.splitlines()[0] == f"read from {cache / only}"
    assert re.search(r"^2 ranks: loss \d+\.\d\d, [\d,]+ images/s$", done.stdout, re.MULTILINE)
    assert done.stderr.count("staged") == 1, done.stderr


def test_what_was_staged_before_is_used(train_here: Callable[..., str], tmp_path: Path, out: Path) -> None:
    cache = tmp_path / "cache"
    assert cli("cache", "add", out, "--fields", "image", "--split", "train", "--directory", cache).code == 0
    (only,) = entries(cache)
    assert train_here(out, "--split", "train", "--cache", cache).startswith(f"read from {cache / only}\n")
    assert entries(cache) == [only]


def test_without_room_it_trains_from_disk(
    train_here: Callable[..., str], tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("precompile.machine.free_bytes", lambda path: 0)
    assert train_here(out, "--cache", tmp_path / "cache").startswith(f"read from {out}\n")
    assert entries(tmp_path / "cache") == []


# The page

BLOCKS = re.findall(r"^```\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines() if line.startswith("precompile ")]


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_page_is_complete(line: str) -> None:
    cache_options(line)


def test_the_code_of_the_page_runs(tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(out.parent)
    monkeypatch.setattr("precompile.loading.caching.options.default_directory", lambda: tmp_path / "default")
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        code = block.replace("/mnt/memory", str(tmp_path / "memory")).replace("64 * 2**30", "1")
        exec(compile(code, "docs/ram_disk.md", "exec", dont_inherit=True), names)
    assert len(entries(tmp_path / "default")) == 1
    assert names["dataset"].stored.root.parent == tmp_path / "memory"


def test_links_and_named_files_exist() -> None:
    targets = re.findall(r"\]\((?!http)([^)#]+)\)", PAGE)
    assert {f"../scripts/ram_disk/{path.name}" for path in (KUBERNETES, DOCKER, TRAIN)} <= set(targets)
    assert all((REPOSITORY / "docs" / target).exists() for target in targets)


def test_the_page_shows_the_sizes_of_the_example() -> None:
    (excerpt,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    shown = yaml.safe_load(excerpt)
    assert shown["resources"]["limits"]["memory"] == container()["resources"]["limits"]["memory"]
    assert shown["volumes"] == [volumes()["memory"]]
