"""The scheduled jobs in scripts/schedule: what they tell their scheduler, and that their commands do what they say."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import filelock
import pytest
import yaml
from builds import REPOSITORY, Outcome, save_image
from schedule_site import Site

from precompile.cli.build import command as build_command

SCHEDULE = REPOSITORY / "scripts" / "schedule"
CRON, SLURM = SCHEDULE / "precompile.cron", SCHEDULE / "slurm-build.sh"
UNITS = (SCHEDULE / "precompile-build.service", SCHEDULE / "precompile-build.timer")
SECONDS = {"s": 1, "min": 60, "h": 3600}
BYTES = {"Mi": 1 << 20, "Gi": 1 << 30, "M": 1 << 20, "G": 1 << 30}  # systemd and Slurm count in powers of 1024, too


def seconds(text: str) -> int:
    """systemd's `10min`, Slurm's `05:00:00`."""
    if ":" in text:
        hours, minutes, rest = map(int, text.split(":"))
        return hours * 3600 + minutes * 60 + rest
    number, unit = re.fullmatch(r"(\d+)([a-z]+)", text).groups()  # type: ignore[union-attr]
    return int(number) * SECONDS[unit]


def num_bytes(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([A-Za-z]+)", text).groups()  # type: ignore[union-attr]
    return int(number) * BYTES[unit]


def crontab() -> tuple[dict[str, str], list[tuple[list[str], str]]]:
    """The environment, and the five time fields and the command of every job."""
    environment, jobs = {}, []
    for line in CRON.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        name, sign, value = line.partition("=")
        if sign and name.isidentifier():
            environment[name] = value
        else:
            *fields, command = line.split(None, 5)
            jobs.append((fields, command))
    return environment, jobs


def unit(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters="=", comment_prefixes="#")
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(path.read_text())
    return parser


def manifests() -> dict[str, Any]:
    return {part["kind"]: part for part in yaml.safe_load_all((SCHEDULE / "kubernetes-cronjob.yaml").read_text())}


def job() -> Any:
    return manifests()["CronJob"]["spec"]["jobTemplate"]["spec"]


def pod() -> Any:
    return job()["template"]["spec"]


def container() -> Any:
    return pod()["containers"][0]


def sbatch() -> dict[str, str | None]:
    """The options of the #SBATCH lines that Slurm reads: those above the first command."""
    options: dict[str, str | None] = {}
    for line in SLURM.read_text().splitlines():
        if line and not line.startswith("#"):
            break
        if line.startswith("#SBATCH "):
            name, sign, value = line.removeprefix("#SBATCH ").partition("=")
            options[name] = value if sign else None
    return options


def build_line(name: str) -> list[str]:
    """The words of the build command of one example, `precompile` first."""
    if name == "cron":
        return shlex.split(re.search(r"precompile build .*? 2>&1", crontab()[1][0][1])[0])[:-1]  # type: ignore[index]
    if name == "systemd":
        return shlex.split(unit(UNITS[0])["Service"]["ExecStart"])
    if name == "kubernetes":
        return list(container()["command"])
    return shlex.split(re.search(r"^precompile build .*(?= &$)", SLURM.read_text(), re.MULTILINE)[0])  # type: ignore[index]


def options(name: str) -> dict[str, Any]:
    program, command, *arguments = build_line(name)
    assert Path(program).name == "precompile"
    assert command == "build"
    return build_command.make_context("build", arguments).params


EXAMPLES = ("cron", "systemd", "kubernetes", "slurm")


@pytest.mark.parametrize("name", EXAMPLES)
def test_all_examples_build_the_same(name: str) -> None:
    found = options(name)
    chosen = {key: value for key, value in found.items() if value not in (None, False, ())}
    expected = {"size": "256", "crop": 224, "max_runtime": 14400, "quiet": True, "as_json": True}
    assert {key: chosen.get(key) for key in expected} == expected
    assert set(chosen) == {*expected, "source_path", "out", "log_file", *_defaults()}


def _defaults() -> set[str]:
    """Options that are set when nobody gives them."""
    params = build_command.make_context("build", ["a", "b"]).params
    return {key for key, value in params.items() if value not in (None, False, ())} - {"source_path", "out"}


def assert_built(done: Outcome, *, compiled: int, reused: int) -> None:
    assert done.code == 0, done
    assert done.err == ""
    summary = json.loads(done.out)
    assert (summary["planned"], summary["compiled"], summary["reused"]) == (6, compiled, reused)


@pytest.mark.parametrize("name", ["systemd", "kubernetes"])
def test_the_command_builds_and_then_has_nothing_to_do(site: Site, name: str) -> None:
    command = [site.here(word) for word in build_line(name)]
    command[0] = str(site.bin / "precompile")
    assert_built(site.run(*command), compiled=6, reused=0)
    assert (site.out / "manifest.json").exists()
    assert_built(site.run(*command), compiled=0, reused=6)


# cron


def cron_job(site: Site, number: int) -> Outcome:
    """Run a line as cron does: by SHELL, with the environment of the file and little else."""
    environment, jobs = crontab()
    here = {name: site.here(value) for name, value in environment.items()}
    return site.run(environment["SHELL"], "-c", jobs[number][1], environment=here)


def test_cron_lines_can_be_installed() -> None:
    environment, jobs = crontab()
    assert environment["MAILTO"]
    assert environment["PATH"].startswith("/opt/precompile/bin:")
    assert not any("$" in value or '"' in value for value in environment.values())  # cron expands and unquotes nothing
    for fields, command in jobs:
        for field, (low, high) in zip(fields, [(0, 59), (0, 23), (1, 31), (1, 12), (0, 7)]):
            numbers = [int(number) for number in re.findall(r"\d+", field)]
            assert re.fullmatch(r"\*|\d+|\d+-\d+", field), field
            assert numbers == sorted(numbers)
            assert all(low <= number <= high for number in numbers)
        assert not re.search(r"(?<!\\)%", command)  # a line break for cron
        assert len(command) < 1000  # the limit of the older crons
        assert "flock" not in command


def test_cron_builds_without_a_mail(site: Site) -> None:
    assert cron_job(site, 0) == Outcome(0, "", "")
    assert cron_job(site, 0) == Outcome(0, "", "")
    assert cron_job(site, 1) == Outcome(0, "", "")  # the weekly verification
    text = (site.logs / "photos.summary.json").read_text()
    first, end = json.JSONDecoder().raw_decode(text)
    second, _ = json.JSONDecoder().raw_decode(text[end:].lstrip())
    assert [(run["compiled"], run["reused"]) for run in (first, second)] == [(6, 0), (0, 6)]
    assert (site.logs / "photos.jsonl").exists()


@pytest.mark.parametrize(("code", "mails"), [(0, False), (1, True), (2, True), (3, True), (75, False), (137, True)])
def test_cron_mails_what_a_person_must_see(site: Site, code: int, mails: bool) -> None:
    site.install_stub(code, "error: it rains")
    done = cron_job(site, 0)
    assert done.err == ""
    assert bool(done.out) == mails
    if mails:
        assert done.code == code
        assert f"precompile build {site.out}: exit code {code}. error: it rains\n" in done.out
    else:
        assert done.code == 0


def test_cron_mails_findings(site: Site) -> None:
    assert cron_job(site, 0).code == 0
    shard = next((site.out / "shards").iterdir())
    shard.write_bytes(shard.read_bytes()[:-1])
    found = cron_job(site, 1)
    assert (found.code, found.out) == (1, "")
    assert shard.name in found.err


# systemd


def test_systemd_service_handles_the_exit_codes() -> None:
    service, head = unit(UNITS[0])["Service"], unit(UNITS[0])["Unit"]
    assert service["Type"] == "exec"  # oneshot refuses RestartForceExitStatus, and ignores RuntimeMaxSec
    assert service["SuccessExitStatus"].split() == ["75"]
    assert service["RestartForceExitStatus"].split() == ["75"]
    assert service.get("Restart", "no") == "no"
    restarts = int(head["StartLimitBurst"])
    assert restarts * seconds(service["RestartSec"]) < seconds(head["StartLimitIntervalSec"])


def test_systemd_service_has_limits() -> None:
    service = unit(UNITS[0])["Service"]
    assert seconds(service["RuntimeMaxSec"]) > options("systemd")["max_runtime"]
    assert (service["KillMode"], service["KillSignal"]) == ("mixed", "SIGTERM")
    assert seconds(service["TimeoutStopSec"]) >= 60
    workers = int(service["CPUQuota"].removesuffix("%")) / 100
    assert num_bytes(service["MemoryMax"]) >= (workers + 0.5) * (1 << 30)
    assert service["OOMPolicy"] == "continue"  # else one large picture ends the build
    assert int(service["Nice"]) > 0


def test_systemd_service_may_write_where_it_must() -> None:
    service, found = unit(UNITS[0])["Service"], options("systemd")
    assert service["ProtectSystem"] == "strict"
    assert str(found["out"].parent) in service["ReadWritePaths"].split()
    assert str(found["log_file"].parent) == f"/var/log/{service['LogsDirectory']}"
    assert "ProcSubset" not in service  # /proc/meminfo is read
    for path in (found["source_path"], found["out"].parent):
        assert str(path) in unit(UNITS[0])["Unit"]["RequiresMountsFor"].split()
    assert not re.search(r"(?<!%)%(?!%)", service["ExecStart"])


def test_systemd_timer_starts_the_service() -> None:
    timer = unit(UNITS[1])
    assert UNITS[1].stem == UNITS[0].stem
    assert "Unit" not in timer["Timer"]
    assert re.fullmatch(r"\*-\*-\* \d\d:\d\d:\d\d", timer["Timer"]["OnCalendar"])
    assert timer["Timer"]["Persistent"] == "true"
    assert timer["Install"]["WantedBy"] == "timers.target"


def test_systemd_accepts_the_units(site: Site) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    for path in UNITS:  # it wants programs to exist
        (site.root / path.name).write_text(path.read_text().replace("/opt/precompile/bin", str(site.bin)))
    names = [path.name for path in UNITS]
    done = subprocess.run(["systemd-analyze", "verify", *names], cwd=site.root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not any(name in done.stderr for name in names), done.stderr


# Kubernetes


def policy(code: int, *, disrupted: bool = False) -> str:
    """What the job does with a pod that ended so: the first rule that fits, else it counts."""
    for rule in job()["podFailurePolicy"]["rules"]:
        codes = rule.get("onExitCodes")
        if codes is not None:
            assert (codes["operator"], codes["containerName"]) == ("In", container()["name"])
            assert codes["values"] == sorted(set(codes["values"]))  # the API asks for it
        if (codes is not None and code in codes["values"]) or (disrupted and "onPodConditions" in rule):
            return str(rule["action"])
    return "Count"


@pytest.mark.parametrize(
    ("code", "action"), [(1, "FailJob"), (2, "FailJob"), (3, "FailJob"), (75, "Count"), (137, "Count")]
)
def test_kubernetes_handles_the_exit_codes(code: int, action: str) -> None:
    assert policy(code) == action
    assert policy(code, disrupted=True) == "Ignore"
    assert pod()["restartPolicy"] == "Never"  # podFailurePolicy asks for it
    assert job()["backoffLimit"] > 1


def test_kubernetes_runs_one_build_a_night() -> None:
    spec = manifests()["CronJob"]["spec"]
    assert manifests()["CronJob"]["apiVersion"] == "batch/v1"
    assert spec["concurrencyPolicy"] == "Forbid"
    assert 10 <= spec["startingDeadlineSeconds"] < 86400
    assert re.fullmatch(r"\d+ \d+ \* \* \*", spec["schedule"])
    assert spec["timeZone"]
    assert options("kubernetes")["max_runtime"] < job()["activeDeadlineSeconds"] < 86400
    assert pod()["terminationGracePeriodSeconds"] >= 60


def test_kubernetes_memory_holds_the_workers_and_the_volume_in_memory() -> None:
    volumes = {volume["name"]: volume for volume in pod()["volumes"]}
    scratch = volumes["scratch"]["emptyDir"]
    assert scratch["medium"] == "Memory"
    resources = container()["resources"]
    assert resources["requests"] == resources["limits"]
    need = (int(resources["limits"]["cpu"]) + 0.5) * (1 << 30)
    assert num_bytes(resources["limits"]["memory"]) >= num_bytes(scratch["sizeLimit"]) + need


def test_kubernetes_mounts_what_the_command_names() -> None:
    mounts = {mount["mountPath"]: mount for mount in container()["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod()["volumes"]}
    found = options("kubernetes")
    source, out = mounts[str(found["source_path"])], mounts[str(found["out"].parent)]
    assert source["readOnly"]
    assert volumes[source["name"]]["persistentVolumeClaim"]["readOnly"]
    claim = volumes[out["name"]]["persistentVolumeClaim"]["claimName"]
    assert claim == manifests()["PersistentVolumeClaim"]["metadata"]["name"]
    assert "readOnly" not in out
    assert found["log_file"].parent == found["out"].parent
    assert "/tmp" in mounts


def test_kubernetes_gives_no_rights_away() -> None:
    assert pod()["securityContext"]["runAsNonRoot"]
    assert pod()["securityContext"]["runAsUser"] > 0
    assert pod()["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"
    rights = container()["securityContext"]
    assert (rights["allowPrivilegeEscalation"], rights["readOnlyRootFilesystem"]) == (False, True)
    assert rights["capabilities"]["drop"] == ["ALL"]
    assert pod()["automountServiceAccountToken"] is False


# Slurm

STOPPABLE = """
import os, signal, sys

def stop(*_):
    os.write(1, b"stopped\\n")
    sys.exit(75)

signal.signal(signal.SIGTERM, stop)
os.write(1, b"at work\\n")
while True:
    signal.pause()
"""


def slurm(site: Site, **environment: str) -> Outcome:
    return site.run("bash", SLURM, site.raw, site.out, environment=environment)


@pytest.fixture
def scontrol(site: Site) -> Path:
    """A file with the arguments of every call of `scontrol`."""
    site.install("scontrol", '#!/bin/sh\necho "$@" >> scontrol.txt\n')
    return site.root / "scontrol.txt"


def test_slurm_options() -> None:
    found = sbatch()
    assert subprocess.run(["bash", "-n", SLURM]).returncode == 0
    target, _, moment = str(found["--signal"]).partition("@")
    assert target == "B:USR1"
    latest = options("slurm")["max_runtime"] + int(moment) + 60  # the signal may come a minute early
    assert seconds(str(found["--time"])) > latest
    assert num_bytes(str(found["--mem"])) >= int(str(found["--cpus-per-task"])) * (1 << 30)
    assert found["--open-mode"] == "append"
    assert "--requeue" in found
    assert found["--dependency"] == "singleton"
    assert len(found) == SLURM.read_text().count("\n#SBATCH ")  # none stands too low to be read


def test_slurm_script_builds_and_then_has_nothing_to_do(site: Site, scontrol: Path) -> None:
    assert_built(slurm(site, SLURM_JOB_ID="4711"), compiled=6, reused=0)
    assert (site.out / "manifest.json").exists()
    assert (site.out.parent / "photos.jsonl").exists()
    assert_built(slurm(site), compiled=0, reused=6)
    assert not scontrol.exists()


@pytest.mark.parametrize(
    ("environment", "requeued"),
    [
        ({}, False),
        ({"SLURM_JOB_ID": "4711"}, True),
        ({"SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": "3"}, True),
        ({"SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": "20"}, False),
    ],
)  # fmt: skip
def test_slurm_requeues_when_another_build_is_at_work(
    site: Site, scontrol: Path, environment: dict[str, str], requeued: bool
) -> None:
    site.out.mkdir()
    with filelock.FileLock(site.out / ".precompile.lock"):
        done = slurm(site, **environment)
    assert done.code == 75, done
    assert "another build" in done.err
    assert (scontrol.read_text() if scontrol.exists() else "") == ("requeue 4711\n" if requeued else "")


@pytest.mark.parametrize("code", [1, 2, 3, 137])
def test_slurm_keeps_other_exit_codes(site: Site, scontrol: Path, code: int) -> None:
    site.install_stub(code)
    assert slurm(site, SLURM_JOB_ID="4711").code == code
    assert not scontrol.exists()


def test_slurm_keeps_the_exit_code_of_bad_files(site: Site) -> None:
    save_image(site.raw / "train" / "class0" / "good.png")
    (site.raw / "train" / "class0" / "bad.png").write_bytes(b"")
    done = slurm(site)
    assert (done.code, json.loads(done.out)["quarantined"]) == (3, 1)


@pytest.mark.parametrize(
    ("number", "requeued"),
    [
        (signal.SIGUSR1, True),  # the time limit is near
        (signal.SIGTERM, False),  # scancel: the job must not come back
    ],
)
def test_slurm_hands_a_signal_on_and_waits(site: Site, scontrol: Path, number: signal.Signals, requeued: bool) -> None:
    site.install("precompile", f"#!{sys.executable}\n" + STOPPABLE)
    process = site.start("bash", SLURM, environment={"SLURM_JOB_ID": "4711"})
    assert process.stdout is not None
    assert process.stdout.readline() == "at work\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (75, "stopped\n"), err
    assert scontrol.exists() == requeued
