#!/bin/bash
# `precompile build` as a Slurm job that asks to be run again until it is done.
#
#   sbatch slurm-build.sh                          # the paths below
#   sbatch slurm-build.sh /data/clips /data/compiled/clips.pc
#
# Every night: the same line in `scrontab` (where the site has it on), or in cron on a login node.
# Without Slurm, `bash slurm-build.sh` builds just so. Only a comment may stand above or between the #SBATCH lines.
#
#SBATCH --job-name=precompile-photos
# One at a time of this name and user; a second one waits without taking a node. (It would do no harm, and end with 75.)
#SBATCH --dependency=singleton
#SBATCH --nodes=1
#SBATCH --ntasks=1
# precompile starts as many workers as this says.
#SBATCH --cpus-per-task=8
# 1 GB a worker and its largest decoded picture. Files on /dev/shm count as well.
#SBATCH --mem=16G
# More than --max-runtime, so that a build ends by itself and in good order.
#SBATCH --time=05:00:00
# If it has not, this script (B:) gets USR1 two minutes before the end; Slurm may send it up to a minute earlier. USR1 and not
# TERM: TERM comes from scancel and from preemption, and a job that was cancelled should not come back.
#SBATCH --signal=B:USR1@120
# Allows `scontrol requeue`, and lets Slurm itself run the job again after a preemption or the death of a node.
#SBATCH --requeue
# The output of all attempts in one file. The default may empty it at every start.
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
# Exit codes 1, 2 and 3.
#SBATCH --mail-type=FAIL
#SBATCH --mail-user=data-team@example.org

set -u

raw=${1:-/data/photos}
out=${2:-/data/compiled/photos.pc}
max_restarts=20

# sbatch hands on the environment of the shell that calls it, also an activated virtual environment. If yours is another:
# source /opt/precompile/bin/activate

again=yes
trap 'kill -TERM $(jobs -p)' USR1
trap 'again=no; kill -TERM $(jobs -p)' TERM INT

# In the background, since bash runs a trap only when no command is in front of it.
precompile build "$raw" "$out" --size 256 --crop 224 --max-runtime 14400 --quiet --json --log-file "${out%.pc}.jsonl" &
build=$!
while kill -0 "$build" 2>/dev/null; do wait "$build"; done # a signal ends one `wait` before the build has ended
wait "$build"
code=$?

# 75: run me again. Slurm starts a requeued job after about two minutes, from its beginning; the build goes on where it stopped.
if [[ $code -eq 75 && $again == yes && -n ${SLURM_JOB_ID:-} ]]; then
    if [[ ${SLURM_RESTART_COUNT:-0} -lt $max_restarts ]]; then
        echo "not done yet (exit code 75), requeued" >&2
        scontrol requeue "$SLURM_JOB_ID"
    else
        echo "not done after $max_restarts restarts, given up" >&2
    fi
fi
exit "$code"
