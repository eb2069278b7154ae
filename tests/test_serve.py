"""The example of a server, over HTTP."""

from __future__ import annotations

import http.client
import json
import runpy
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from .conftest import elmo_pipeline, max_difference
from .test_examples import EXAMPLES

uvicorn = pytest.importorskip("uvicorn")
pytest.importorskip("fastapi")


@pytest.fixture
def request_(weights_folder):
    """A function that sends a body to a server. RETURNS (tuple): Status and answer."""
    app = runpy.run_path(str(EXAMPLES / "serve.py"))["make_app"](elmo_pipeline(weights_folder))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]

    def send(path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        method = "GET" if body is None else "POST"
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    yield send
    server.should_exit = True
    thread.join(60)


BAD = {
    "{}": "text: Field required",
    '{"text": ""}': "text: String should have at least 1 character",
    '{"text": 5}': "text: Input should be a valid string",
    '{"text": "\\ud800"}': "text: ",
    '{"text": "a", "pool": "max"}': "pool: Input should be 'none' or 'doc'",
    '{"text": "a", "layers": 1}': "layers: Extra inputs are not permitted",
    "{": "JSON decode error",
}


def test_a_server(request_, weights_folder):
    alone = elmo_pipeline(weights_folder)
    texts = ["The river bank.", "money", " ", "the the the"] * 3
    bodies = [
        json.dumps({"text": text, "pool": pool}) for text in texts for pool in ("none", "doc")
    ]
    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(lambda body: request_("/embed", body), bodies))
    for body, (status, answer) in zip(bodies, answers, strict=True):
        doc, values = alone(json.loads(body)["text"]), json.loads(answer)
        expected = doc._.elmo if '"doc"' in body else doc._.elmo_tokens
        assert status == 200 and values["tokens"] == [token.text for token in doc]
        assert max_difference(values["vectors"], expected) <= 1e-5
    for body, message in BAD.items():
        status, answer = request_("/embed", body)
        assert status == 422 and message in json.loads(answer)["error"]
    assert json.loads(request_("/health")[1])["status"] == "ok"
    metrics = request_("/metrics")[1]
    assert 'elmo_requests_total{status="200"} 24\n' in metrics
    assert f'elmo_requests_total{{status="422"}} {len(BAD)}\n' in metrics
