"""Write the shards of a `Job` on Ray (the extra `ray`).

The shards are the rows of a Ray dataset. Its actors read their input and write their parts, so that
nothing but numbers of shards goes through Ray, and actors may hold all CPUs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

from ..files import exclusive_lock, remove_folder
from .job import Job
from .rows import is_stream

# More than there are actors, so that all end at about the same time.
_SHARDS_PER_ACTOR = 8
# Bytes that Ray reserves for objects. There are none to speak of.
_OBJECT_STORE = 100 << 20


def run_on_ray(
    job: Job, n_actors: Optional[int] = None, *, gpu: bool = False
) -> Iterator[tuple[int, int, int]]:
    """Write all shards of a job. Ray is that of RAY_ADDRESS, or is started for the time of the run;
    its files are then in the output's folder ".ray", or where RAY_TMPDIR says.

    job (Job): The job, prepared. An actor takes as many CPUs as its `embed` has threads (1).
    n_actors (Optional[int]): How many; None for as many as there are CPUs (or GPUs) for.
    gpu (bool): Whether each actor takes a GPU.
    YIELDS (tuple): For each shard that is complete, what `Job.run` yields for a part.
    RAISES (ValueError): If Ray is not installed or cannot start, if another run with Ray writes the
        output, or if a shard cannot be written.
    """
    if streams := list(filter(is_stream, job.sources)):
        raise ValueError(f"{streams[0]} can be read only once, and by no worker: give a file")
    threads = job.embed.threads or 1
    embed = replace(job.embed, threads=threads, gpu_id=0 if gpu else -1)
    job = replace(job, out=job.out.absolute(), embed=embed)
    with (
        exclusive_lock(job.folder / ".ray.lock", f"another run with Ray is writing {job.out}"),
        _started(job.folder / ".ray") as ray,
    ):
        needed = {"CPU": threads, **({"GPU": 1} if gpu else {})}
        resources = ray.cluster_resources()
        n_possible = min(int(resources.get(kind, 0) // n) for kind, n in needed.items())
        if n_possible < 1:
            raise ValueError(f"Ray has {resources}, but an actor needs {needed}: fewer --threads?")
        n_actors = min(n_actors or n_possible, n_possible)
        n_shards = max(len(job.sources), _SHARDS_PER_ACTOR * n_actors)
        shards = ray.data.from_items(
            [{"shard": shard} for shard in range(n_shards)], override_num_blocks=n_shards
        )
        done = shards.map_batches(
            _Writer,
            fn_constructor_args=(job, n_shards, os.getcwd()),
            batch_size=1,
            # One runs, the next one waits in the actor. Others go to whoever is done first.
            compute=ray.data.ActorPoolStrategy(size=n_actors, max_tasks_in_flight_per_actor=2),
            num_cpus=threads,
            num_gpus=int(gpu),
        )
        for row in done.iter_rows():
            if row["error"]:
                raise ValueError(row["error"])
            job.reader.n_bad += row["bad"]
            yield row["rows"], row["nulls"], row["new"]
        job.finish(n_shards)


class _Writer:
    """What an actor does. Ray makes another one if it dies, which does the shard again."""

    def __init__(self, job: Job, n_shards: int, folder: str) -> None:
        os.chdir(folder)  # Of the command.
        self.job = job
        self.n_shards = n_shards

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        counts = [(0, 0, 0)]
        problem, n_bad = "", self.job.reader.n_bad
        try:
            counts += self.job.run(int(batch["shard"][0]), self.n_shards)
        except (ValueError, OSError) as error:  # Ray would hide the message in its own.
            problem = str(error)
        sums = {x: [sum(y)] for x, y in zip(("rows", "nulls", "new"), zip(*counts))}
        return {**sums, "bad": [self.job.reader.n_bad - n_bad], "error": [problem]}


@contextlib.contextmanager
def _started(folder: Path) -> Iterator[Any]:
    """YIELDS (module): ray, connected. RAISES (ValueError): If it is not, or cannot be."""
    is_local = not os.environ.get("RAY_ADDRESS")
    if is_local:  # Ray reads these when it is imported.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Otherwise it would write a token to the home folder.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ValueError(f'--engine ray: pip install "spacy-elmo[ray]" ({error})') from error
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING}
    if is_local:
        settings |= {"include_dashboard": False, "object_store_memory": _OBJECT_STORE}
        if "RAY_TMPDIR" not in os.environ:
            remove_folder(folder)  # Of a killed run.
            folder.mkdir()
            settings["_temp_dir"] = str(folder)
    try:
        try:
            ray.init(**settings)
        except Exception as error:  # Ray has no common error for this.
            raise ValueError(
                f"Ray does not start: {error}. If the path {folder} is too long for sockets, name "
                "a folder with a shorter one in RAY_TMPDIR"
            ) from error
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = context.print_on_execution_start = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        yield ray
    except ray.exceptions.RayError as error:
        raise ValueError(f"Ray: {error}") from error
    finally:
        ray.shutdown()
        remove_folder(folder)
