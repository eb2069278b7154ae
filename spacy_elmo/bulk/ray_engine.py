"""Write the shards of a `Job` on Ray. Its actors read their input and write their parts: nothing
but numbers of shards goes through Ray, and actors may hold all CPUs (`data.range` needs one)."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

from ..tools.records import Progress
from .job import Job


def run_on_ray(
    job: Job, n_actors: Optional[int] = None, *, gpu: bool = False, progress: Progress = None
) -> Iterator[tuple[int, int, int]]:
    """Write all shards of a job that is prepared. Ray is that of RAY_ADDRESS, or is started for the
    time of the run. An actor takes as many CPUs as `embed` has threads (1), and a GPU if `gpu`.

    n_actors (Optional[int]): How many; None for as many as there are CPUs (or GPUs) for.
    progress (Optional[Callable]): Called with the rows of each shard that is complete.
    YIELDS (tuple): For each shard that is complete, what `Job.run` yields for a part.
    """
    threads = job.embed.threads or 1
    embed = replace(job.embed, threads=threads, gpu_id=0 if gpu else -1)
    job = replace(job, out=job.out.absolute(), embed=embed)
    if streams := [x for x in job.sources if isinstance(x, Path) and not x.is_file()]:
        raise ValueError(f"{streams[0]} can be read only once, and by no worker: give a file")
    with _started() as ray:
        needed = {"CPU": threads, **({"GPU": 1} if gpu else {})}
        resources = ray.cluster_resources()
        n_possible = min(int(resources.get(kind, 0) // n) for kind, n in needed.items())
        if n_possible < 1:
            raise ValueError(f"Ray has {resources}, but an actor needs {needed}: fewer --threads?")
        n_actors = min(n_actors or n_possible, n_possible)
        n_shards = max(len(job.sources), 8 * n_actors)  # Many, so that all end at the same time.
        done = ray.data.from_items([*range(n_shards)], override_num_blocks=n_shards).map_batches(
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
            if progress is not None:
                progress(row["rows"])
            yield row["rows"], row["nulls"], row["new"]
        job.finish(n_shards)


class _Writer:
    """What an actor does. Ray makes another one if it dies, which does the shard again."""

    def __init__(self, job: Job, n_shards: int, folder: str) -> None:
        os.chdir(folder)  # Of the command.
        self.job, self.n_shards = job, n_shards

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        counts = [(0, 0, 0)]
        problem, n_bad = "", self.job.reader.n_bad
        try:
            counts += self.job.run(int(batch["item"][0]), self.n_shards)
        except (ValueError, OSError) as error:  # Ray would hide the message in its own.
            problem = str(error)
        sums = {x: [sum(y)] for x, y in zip(("rows", "nulls", "new"), zip(*counts))}
        return {**sums, "bad": [self.job.reader.n_bad - n_bad], "error": [problem]}


@contextlib.contextmanager
def _started() -> Iterator[Any]:
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING}
    if not os.environ.get("RAY_ADDRESS"):
        # Ray reads these when it is imported. Without a token, it would write one to the home.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        # No object goes through the store, for which Ray would take a third of the memory.
        settings |= {"include_dashboard": False, "object_store_memory": 100 << 20}
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ValueError(f'--engine ray: pip install "spacy-elmo[ray]" ({error})') from error
    try:
        ray.init(**settings)
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = context.print_on_execution_start = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        yield ray
    except (ray.exceptions.RayError, RuntimeError, ConnectionError) as error:
        raise ValueError(f"Ray: {error}") from error
    finally:
        ray.shutdown()
