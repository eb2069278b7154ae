"""Several processes that train one model, started with `torchrun`.

Every process reads its share of each batch, and the gradients are summed, so that the result is
that of one process. Only rank 0 writes files and reports.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

import torch
from torch import distributed, nn


def rank() -> int:
    """RETURNS (int): The number of this process; 0 without torchrun."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def world_size() -> int:
    return distributed.get_world_size() if distributed.is_initialized() else 1


@contextlib.contextmanager
def process_group(gpu: bool, gpu_id: int = 0) -> Iterator[str]:
    """Join the processes that torchrun started, if there are several: by NCCL, with one GPU each,
    or by gloo. YIELDS (str): "cuda:N", the GPU, which is made the current one, or "cpu"."""
    is_one = int(os.environ.get("WORLD_SIZE", 1)) == 1
    number = gpu_id if is_one else int(os.environ["LOCAL_RANK"])
    if gpu:
        torch.cuda.set_device(number)
    device = f"cuda:{number}" if gpu else "cpu"
    if is_one:
        yield device
        return
    distributed.init_process_group("nccl" if gpu else "gloo")
    try:
        yield device
    finally:
        distributed.destroy_process_group()
        # Gloo's threads need the interpreter to release the tensors of their last operation. A
        # thread that waits for it when the interpreter ends aborts the process (PyTorch 2.13).
        time.sleep(0.5)


def any_rank(flag: bool, device: torch.device) -> bool:
    """RETURNS (bool): Whether the flag is set in any process; each waits for all others."""
    if world_size() == 1:
        return flag
    return bool(sum_over_processes(torch.tensor(float(flag), device=device)))


def broadcast(value: float, device: torch.device) -> float:
    """RETURNS (float): The value of rank 0."""
    if world_size() == 1:
        return value
    tensor = torch.tensor(value, dtype=torch.float64, device=device)
    distributed.broadcast(tensor, 0)
    return float(tensor)


def broadcast_weights(model: nn.Module) -> None:
    """Give all processes the weights of rank 0: random numbers may differ between processors."""
    for parameter in model.parameters() if world_size() > 1 else ():
        distributed.broadcast(parameter.detach(), 0)


def sum_over_processes(value: torch.Tensor) -> torch.Tensor:
    """RETURNS (Tensor): The same tensor, which becomes the sum of those of all processes."""
    if world_size() > 1:
        distributed.all_reduce(value)
    return value


def sum_gradients(model: nn.Module) -> None:
    """Sum the gradients of all processes, which have them for the same parameters."""
    for parameter in model.parameters() if world_size() > 1 else ():
        if parameter.grad is not None:
            if parameter.grad.is_sparse:
                parameter.grad = parameter.grad.coalesce()
            distributed.all_reduce(parameter.grad)


def all_gather(value: torch.Tensor, dim: int) -> torch.Tensor:
    """RETURNS (Tensor): The tensors of all processes, concatenated."""
    tensors = [torch.empty_like(value) for _ in range(world_size())]
    if len(tensors) == 1:
        return value
    distributed.all_gather(tensors, value.contiguous())
    return torch.cat(tensors, dim)
