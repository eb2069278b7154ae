"""Serve vectors over HTTP. Threads share a pipeline; requests that come together run together.

    pip install "spacy-elmo[serve]"
    python examples/serve.py --model en_elmo_sm --port 8000
    curl localhost:8000/embed -H "Content-Type: application/json" -d '{"text": "The river bank."}'

/embed gives tokens and their vectors, or one vector with "pool": "doc". /health says that the
pipeline is loaded, and /metrics has counters in the text format of Prometheus.
"""

import argparse
import asyncio
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import uvicorn
from fastapi import FastAPI
from fastapi import Request as HTTPRequest
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field
from spacy.language import Language
from thinc.api import to_numpy

from spacy_elmo.weights import load_pipeline

WORKERS = 8
MAX_CHARACTERS = 20_000


class Request(BaseModel):
    """The body of a request. Anything else in it is an error."""

    model_config = ConfigDict(extra="forbid", strict=True)
    text: str = Field(min_length=1, max_length=MAX_CHARACTERS)
    pool: Literal["none", "doc"] = "none"


def embed(nlp: Language, request: Request) -> dict[str, Any]:
    """RETURNS (dict): The tokens, and a vector for each of them or one for the text."""
    doc = nlp(request.text)
    vectors = doc._.elmo if request.pool == "doc" else doc._.elmo_tokens
    return {"tokens": [token.text for token in doc], "vectors": to_numpy(vectors).tolist()}


def make_app(nlp: Language) -> FastAPI:
    """RETURNS (FastAPI): A server of a pipeline."""
    app, workers = FastAPI(), ThreadPoolExecutor(WORKERS)
    counts: Counter[str] = Counter()

    @app.exception_handler(RequestValidationError)
    async def invalid(_: HTTPRequest, error: RequestValidationError) -> JSONResponse:
        # Without the input, which may be long, or no Unicode.
        counts['requests_total{status="422"}'] += 1
        errors = [(".".join(map(str, x["loc"][1:])) or "body", x["msg"]) for x in error.errors()]
        message = "; ".join(f"{place}: {what}" for place, what in errors)
        return JSONResponse({"error": message.encode(errors="replace").decode()}, 422)

    @app.post("/embed")
    async def embed_text(request: Request) -> JSONResponse:
        start, status = time.perf_counter(), 500
        try:
            loop = asyncio.get_running_loop()
            result = await loop.run_in_executor(workers, embed, nlp, request)
            counts["tokens_total"] += len(result["tokens"])
            status = 200
            return JSONResponse(result)
        finally:
            counts[f'requests_total{{status="{status}"}}'] += 1
            counts["request_seconds_total"] += time.perf_counter() - start  # type: ignore

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok", "pipeline": f"{nlp.lang}: {', '.join(nlp.pipe_names)}"}

    @app.get("/metrics")
    async def metrics() -> PlainTextResponse:
        return PlainTextResponse("".join(f"elmo_{k} {v}\n" for k, v in sorted(counts.items())))

    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="en_elmo_sm", help="a pipeline, or the name of weights")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    args = parser.parse_args()
    nlp = load_pipeline(args.model)
    nlp("The weights are packed before the first request.")
    uvicorn.run(make_app(nlp), host=args.host, port=args.port, log_level="warning")


if __name__ == "__main__":
    main()
