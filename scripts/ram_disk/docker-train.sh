#!/bin/sh
# Training in Docker, on a dataset that is read from memory.
#
#   sh docker-train.sh own OUT        # the copy belongs to this container, and is gone with it
#   sh docker-train.sh shared OUT     # the copy belongs to this machine: one for all containers of this user
#   precompile cache drop OUT         # after `shared`: it stays until then, or until the machine starts again
#
# Which to take: `own` when one container trains on a machine, `shared` when several do, or one after the other.
#
# Adapt: IMAGE (any Python image in which `pip install` was run on this repository, with train.py in /app), the numbers
# below, and the commands. Without GPUs: GPUS= sh docker-train.sh own OUT

set -eu

IMAGE=${IMAGE-precompile:0.1.0}
GPUS=${GPUS-all}
RANKS=${RANKS-2}                   # processes, usually one for each GPU
TRAINING_MIB=${TRAINING_MIB-16384} # memory of all ranks and their workers, without what lies in /dev/shm
SHARED_MIB=${SHARED_MIB-4096}      # what else lies in /dev/shm (NCCL's buffers, batches of DataLoader workers)

fail() {
    echo "$0: $1" >&2
    exit 2
}

[ $# -eq 2 ] || fail "expected: own|shared OUT"
[ -f "$2/manifest.json" ] || fail "$2: not a compiled dataset, there is no manifest.json"
# The same path inside and outside: a copy is known by the path of its dataset, and another path is another copy.
out=$(realpath "$2")
user=$(id -u)

# Arguments: options of this container alone, the image, a script, and what the script calls $1 and $2.
run() {
    docker run --rm --user "$user:$(id -g)" --env HOME=/tmp --volume "$out:$out:ro" "$@"
}

# In a container: $1 is the dataset, $2 the memory that has to stay free, or the number of ranks. What does not fit ends
# the first one with code 1, need and have. To train from the disk then, write `|| true` behind it.
stage='precompile cache add "$1" --fields image --reserve "$2" --quiet'
train='exec torchrun --standalone --nproc-per-node "$2" /app/train.py "$1"'

case $1 in
own)
    # /dev/shm of a container has 64 MB unless --shm-size says more, and what lies in it counts against --memory. All kept
    # generations are counted here, so rather too much: staged are the fields of one.
    dataset_mib=$(du -sm --apparent-size "$out" | cut -f1)
    shm_mib=$((dataset_mib + SHARED_MIB))
    memory_mib=$((shm_mib + TRAINING_MIB))
    # --memory-swap is memory and swap together: the same number, so that nothing is swapped out.
    run --memory="${memory_mib}m" --memory-swap="${memory_mib}m" --shm-size="${shm_mib}m" ${GPUS:+--gpus "$GPUS"} \
        "$IMAGE" sh -euc "$stage; set -- \"\$1\" \"\$3\"; $train" sh "$out" "${TRAINING_MIB}MiB" "$RANKS"
    ;;
shared)
    # Not made by dockerd, which would give it to root: precompile refuses a folder that is not its user's alone.
    cache=${CACHE-/dev/shm/precompile-$user}
    [ -d "$cache" ] || mkdir -m 700 "$cache"
    [ -O "$cache" ] || fail "$cache: belongs to another user; set CACHE to a folder of your own on a RAM disk"
    mount=type=bind,source=$cache,target=/dev/shm/precompile-$user
    memory_mib=$((SHARED_MIB + TRAINING_MIB))
    # Pages are charged to the container that writes them first. This one ends when the copy is whole; then they are the
    # machine's, and count against the limit of no container. It has no limit itself: `cache add` looks at the memory that the
    # machine has. When the copy is there already, this takes a moment.
    run --mount "$mount" "$IMAGE" sh -euc "$stage" sh "$out" "${memory_mib}MiB"
    run --memory="${memory_mib}m" --memory-swap="${memory_mib}m" --shm-size="${SHARED_MIB}m" --mount "$mount" \
        ${GPUS:+--gpus "$GPUS"} "$IMAGE" sh -euc "$train" sh "$out" "$RANKS"
    ;;
*)
    fail "expected own or shared, got $1"
    ;;
esac
