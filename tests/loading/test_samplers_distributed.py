"""The samplers under torch.distributed: two processes that were told nothing else share the samples."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from precompile import CompiledDataset, LengthBatchSampler

Written = tuple[Path, list[dict[str, Any]]]

SCRIPT = """
import json, sys
import torch.distributed
from precompile import BlockShuffleSampler, CompiledDataset, LengthBatchSampler, ShuffleSampler

address, rank, root = sys.argv[1], int(sys.argv[2]), sys.argv[3]
dataset = CompiledDataset(root)
samplers = {  # made before the processes know of each other
    "shuffle": ShuffleSampler(dataset, seed=3),
    "block": BlockShuffleSampler(dataset, seed=3, run_bytes=256, window_runs=2, remainder="drop"),
    "batches": LengthBatchSampler(dataset, seed=3, batch_size=4),
}
torch.distributed.init_process_group("gloo", init_method=f"file://{address}", rank=rank, world_size=2)
found = {name: {"length": len(sampler), "epochs": [list(sampler), list(sampler)], "state": sampler.state_dict()}
         for name, sampler in samplers.items()}
torch.distributed.destroy_process_group()
print(json.dumps(found))
"""


@pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()), reason="no gloo in this torch"
)
def test_two_processes_share_the_samples(spectrograms: Written, tmp_path: Path) -> None:
    root, samples = spectrograms
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(tmp_path / "meeting"), str(rank), str(root)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    ranks = [json.loads(output) for output, _ in outputs]
    everything = list(range(len(samples)))
    for name in ("shuffle", "block"):
        for epoch in range(2):
            parts = [rank[name]["epochs"][epoch] for rank in ranks]
            assert sorted(parts[0] + parts[1]) == everything
            assert len(parts[0]) == len(parts[1]) == ranks[0][name]["length"]
        assert ranks[0][name]["epochs"][0] != ranks[0][name]["epochs"][1]
    for epoch in range(2):
        parts = [rank["batches"]["epochs"][epoch] for rank in ranks]
        assert len(parts[0]) == len(parts[1]) == 4
        assert sorted(position for part in parts for batch in part for position in batch) == everything
    assert all(ranks[0][name]["state"] == ranks[1][name]["state"] for name in ranks[0])
    with pytest.raises(ValueError, match="world_size is 1 here, 2 in the state"):
        LengthBatchSampler(CompiledDataset(root), seed=3, batch_size=4).load_state_dict(ranks[0]["batches"]["state"])
