"""How fast are many callers of one pipeline, with and without running their calls together?

    python benchmarks/serve.py threads
    python benchmarks/serve.py http

`threads`: 8 threads call `nlp` with a sentence each, and one caller alone, both ways in turns.
Rates are by time, and by time of the processor, which other processes of the machine disturb less.
`http`: a real server (examples/serve.py, its extra `serve`) under load. Every answer is compared
with the vector of a single call; a bad input, a caller that leaves and a fork come in between.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy
import spacy
import texts
from common import build, describe
from spacy.tokens import Doc

from spacy_elmo.inference.callers import Callers
from spacy_elmo.layers.encoder import set_bilm
from spacy_elmo.weights import load_pipeline

EXAMPLES = Path(__file__).parents[1] / "examples"
N_CALLERS = 8
JOINED_RUN = Callers.run


def set_joining(on: bool) -> None:
    """Run calls together, or each by itself, as before there was `Callers`."""

    def alone(self: Any, run: Any, batch: Any, n_tokens: int) -> Any:
        return run(*batch)

    Callers.run = JOINED_RUN if on else alone  # type: ignore[method-assign]


# ------------------------------------------------------------------------------------------ threads


def measure_threads(args: argparse.Namespace) -> None:
    print("| shape | joined | tokens/s | tokens/CPU s | p50 alone ms | p50 alone CPU ms |")
    print("|---|---|---|---|---|---|")
    for shape in args.shapes:
        n_sentences = args.sentences if shape != "original" else args.sentences // 6
        sentences = texts.sentences(n_sentences)[1]
        nlp = spacy.blank("en")
        elmo: Any = nlp.add_pipe("elmo", config={"keep_layers": False})
        set_bilm(elmo.model, build(shape, "cpu"))
        list(nlp.pipe(Doc(nlp.vocab, words=words) for words in sentences))
        n_tokens = sum(map(len, sentences))
        rates: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        alone: dict[bool, list[tuple[float, float]]] = {False: [], True: []}

        def call(words: list[str], nlp: Any = nlp) -> tuple[float, float]:
            doc, before = Doc(nlp.vocab, words=words), (time.perf_counter(), time.process_time())
            nlp(doc)
            return time.perf_counter() - before[0], time.process_time() - before[1]

        for _ in range(args.repeats):
            for on in (False, True):
                set_joining(on)
                start = time.perf_counter(), time.process_time()
                with ThreadPoolExecutor(N_CALLERS) as callers:
                    list(callers.map(call, sentences))
                end = time.perf_counter(), time.process_time()
                rates[on].append((n_tokens / (end[0] - start[0]), n_tokens / (end[1] - start[1])))
        for words in sentences[: 200 if shape != "original" else 40]:
            for on in (False, True):  # In turns: the machine does other work, too.
                set_joining(on)
                alone[on].append(call(words))
        rows = {}
        for on in (False, True):
            rows[on] = [*map(median, zip(*rates[on])), *(1000 * median(x) for x in zip(*alone[on]))]
            cells = " | ".join(f"{x:,.1f}" for x in rows[on])
            print(f"| {shape} | {'yes' if on else 'no'} | {cells} |")
        ratios = " | ".join(f"{b / a:.2f}" for a, b in zip(rows[False], rows[True]))
        print(f"| {shape} | ratio | {ratios} |", flush=True)


# --------------------------------------------------------------------------------------------- http


def serve(args: argparse.Namespace) -> None:
    """The server's process. /fork makes it fork while it runs; the child embeds a text."""
    sys.path.insert(0, str(EXAMPLES))
    import uvicorn
    from serve import make_app

    set_joining(os.environ["BENCHMARK_JOINING"] == "1")
    nlp = load_pipeline(args.model)
    nlp("The weights are packed.")
    app = make_app(nlp)

    @app.get("/fork")
    def fork() -> dict[str, int]:
        process = os.fork()
        if not process:
            os._exit(0 if len(nlp("The child runs.")._.elmo_tokens) == 4 else 1)
        return {"code": os.waitpid(process, 0)[1]}

    uvicorn.run(app, port=args.port, log_level="error")


def resident_mb(process: int) -> float:
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def request(connection: Any, method: str, path: str, body: object = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body)
    connection.request(method, path, data, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def load(args: argparse.Namespace, joining: bool, n_clients: int, expected: dict) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, __file__, "serve", "--model", args.model, "--port", str(port)]
    environment = {**os.environ, "BENCHMARK_JOINING": str(int(joining))}
    server = subprocess.Popen(command, env=environment)
    try:
        run_clients(args, joining, n_clients, expected, port, server)
    finally:
        server.terminate()
        server.wait()


def run_clients(
    args: argparse.Namespace,
    joining: bool,
    n_clients: int,
    expected: dict,
    port: int,
    server: subprocess.Popen[bytes],
) -> None:
    def connect() -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    while True:
        try:
            assert request(connect(), "GET", "/health")[0] == 200
            break
        except ConnectionError:
            if server.poll() is not None:
                sys.exit("the server has ended: its message is above")
            time.sleep(0.2)
    all_texts, own = list(expected), threading.local()
    seconds, memory, errors, differences = [], {}, [], []

    def one(number: int) -> None:
        if not hasattr(own, "connection"):
            own.connection = connect()
        text = all_texts[number % len(all_texts)]
        start = time.perf_counter()
        try:
            status, answer = request(
                own.connection, "POST", "/embed", {"text": text, "pool": "doc"}
            )
        except OSError as error:
            errors.append(error)
            own.connection = connect()
            return
        seconds.append(time.perf_counter() - start)
        if status != 200:
            errors.append(status)
        else:
            differences.append(numpy.abs(numpy.array(answer["vectors"]) - expected[text]).max())
        if number in (999, args.requests - 1):
            memory[number] = resident_mb(server.pid)

    def odd_ones() -> list[object]:
        """A bad input, a caller that leaves, and a fork, while others are served."""
        bad = request(connect(), "POST", "/embed", {"text": ""})
        raw = json.dumps({"text": all_texts[0]})
        head = "POST /embed HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        with socket.create_connection(("127.0.0.1", port)) as leaving:
            leaving.sendall(f"{head}Content-Length: {len(raw)}\r\n\r\n{raw}".encode())
        return [bad, request(connect(), "GET", "/fork")]

    start = time.perf_counter()
    with ThreadPoolExecutor(n_clients) as clients, ThreadPoolExecutor(1) as other:
        work = [clients.submit(one, number) for number in range(args.requests)]
        work[args.requests // 3].result()
        odd = other.submit(odd_ones)
        for future in work:
            future.result()
    duration = time.perf_counter() - start
    p50, p95, p99 = 1000 * numpy.percentile(seconds, [50, 95, 99])
    grown = " to ".join(f"{memory[number]:.0f}" for number in sorted(memory))
    print(
        f"| {n_clients} | {'yes' if joining else 'no'} | {len(seconds)} | {len(errors)} | "
        f"{max(differences):.0e} | {p50:.0f} | {p95:.0f} | {p99:.0f} | "
        f"{len(seconds) / duration:.0f} | {grown} |\n\n{odd.result()}\n",
        flush=True,
    )


def measure_http(args: argparse.Namespace) -> None:
    nlp = load_pipeline(args.model)
    sentences = {" ".join(words) for words in texts.sentences(500)[1] if 2 < len(words) < 60}
    expected = {text: nlp(text)._.elmo for text in sorted(sentences)}
    print("| clients | joined | answers | errors | difference | p50 ms | p95 | p99 | /s | MB |")
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    for n_clients in args.clients:
        for joining in map("yes".__eq__, args.joining):
            load(args, joining, n_clients, expected)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mode", choices=("threads", "http", "serve"))
    parser.add_argument("--shapes", nargs="+", default=["small", "original"])
    parser.add_argument("--sentences", type=int, default=600)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--model", default="en_elmo_sm")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", nargs="+", type=int, default=[8, 64])
    parser.add_argument("--joining", nargs="+", default=["no", "yes"], choices=("no", "yes"))
    parser.add_argument("--port", type=int, default=8000)
    args = parser.parse_args()
    if args.mode != "serve":
        print(f"{describe('cpu')}\n")
    {"threads": measure_threads, "http": measure_http, "serve": serve}[args.mode](args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
