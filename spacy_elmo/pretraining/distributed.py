"""Several processes that train one model, started with `torchrun`.

Every process reads its share of each batch, and the gradients are summed, so that the result is
that of one process. Only rank 0 writes files and reports.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Optional

import numpy
import torch
from torch import distributed

# For arrays in main memory; None for the processes' usual group.
_host_group: Optional[distributed.ProcessGroup] = None


def rank() -> int:
    """RETURNS (int): The number of this process; 0 without torchrun."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def world_size() -> int:
    return distributed.get_world_size() if distributed.is_initialized() else 1


@contextlib.contextmanager
def process_group(gpu: bool, gpu_id: int = 0) -> Iterator[str]:
    """Join the processes that torchrun started, if there are several.

    gpu (bool): Train on GPUs: NCCL, and one GPU per process. Else gloo.
    gpu_id (int): The GPU, if there is one process.
    YIELDS (str): "cuda:N" for this process's GPU, which is made the current one, or "cpu".
    """
    is_one = int(os.environ.get("WORLD_SIZE", 1)) == 1
    number = gpu_id if is_one else int(os.environ["LOCAL_RANK"])
    if gpu:
        torch.cuda.set_device(number)
    device = f"cuda:{number}" if gpu else "cpu"
    if is_one:
        yield device
        return
    global _host_group
    distributed.init_process_group("nccl" if gpu else "gloo")
    _host_group = distributed.new_group(backend="gloo") if gpu else None
    try:
        yield device
    finally:
        distributed.destroy_process_group()
        # Gloo's threads need the interpreter to release the tensors of their last operation. A
        # thread that waits for it when the interpreter ends aborts the process (PyTorch 2.13).
        time.sleep(0.5)


def any_rank(flag: bool, device: torch.device) -> bool:
    """RETURNS (bool): Whether the flag is set in any process."""
    if world_size() == 1:
        return flag
    value = torch.tensor(float(flag), device=device)
    distributed.all_reduce(value, distributed.ReduceOp.MAX)
    return bool(value)


def broadcast(value: float, device: torch.device) -> float:
    """RETURNS (float): The value of rank 0."""
    if world_size() == 1:
        return value
    tensor = torch.tensor(value, dtype=torch.float64, device=device)
    distributed.broadcast(tensor, 0)
    return float(tensor)


def all_reduce_sum(value: torch.Tensor) -> torch.Tensor:
    """RETURNS (Tensor): The sum over all processes."""
    if world_size() > 1:
        distributed.all_reduce(value)
    return value


def all_gather(value: torch.Tensor, dim: int) -> torch.Tensor:
    """RETURNS (Tensor): The tensors of all processes, of one size, concatenated."""
    if world_size() == 1:
        return value
    tensors = [torch.empty_like(value) for _ in range(world_size())]
    distributed.all_gather(tensors, value.contiguous())
    return torch.cat(tensors, dim)


def all_gather_unique(values: numpy.ndarray) -> numpy.ndarray:
    """RETURNS (ndarray): The distinct values of all processes, rising. Does not wait for GPUs."""
    values = numpy.unique(values)
    if world_size() == 1:
        return values
    size = torch.tensor(len(values))
    distributed.all_reduce(size, distributed.ReduceOp.MAX, group=_host_group)
    # All tensors must be of one size.
    mine = torch.from_numpy(numpy.resize(values, int(size)))
    tensors = [torch.empty_like(mine) for _ in range(world_size())]
    distributed.all_gather(tensors, mine, group=_host_group)
    return numpy.unique(torch.cat(tensors).numpy())


def barrier() -> None:
    """Wait for the other processes."""
    if world_size() > 1:
        distributed.barrier()
