"""As much of a W&B server as wandb 0.31 needs to record a run, on loopback; it can go away while a run is going on.

It answers what a client was seen to ask: GraphQL operations at ``/graphql`` (`ANSWERS`), the stream of a run's rows at
``/files/<entity>/<project>/<run>/file_stream``, and uploads of files, which it takes and drops. An operation that it does
not know is an error of the test, in `unknown`.
"""

import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

__all__ = ["KEY", "Recorded", "WandbStub"]

Loss = Literal["closed", "silent"]
KEY = "0" * 40  # what an API key looks like
TELEMETRY = "/sdk/otel/"  # of wandb itself
ENTITY = {"id": "1", "name": "tester"}
HISTORY, SUMMARY = "wandb-history.jsonl", "wandb-summary.json"


@dataclass
class Recorded:
    """One run, as the server knows it."""

    id: str
    lines: dict[int, str] = field(default_factory=dict)  # of the history, by their place
    config: dict[str, Any] = field(default_factory=dict)
    summary: str = "{}"
    exitcode: int | None = None

    @property
    def history(self) -> list[dict[str, Any]]:
        return [json.loads(self.lines[place]) for place in sorted(self.lines)]


class WandbStub:
    """A context: ``with WandbStub() as server: run(env=server.environment)``."""

    def __init__(self) -> None:
        self.runs: dict[str, Recorded] = {}
        self.asked: list[tuple[str, dict[str, Any]]] = []  # operations with their variables
        self.unknown: list[str] = []
        self._lost: Loss | None = None
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # clients that were killed

    def __enter__(self) -> "WandbStub":
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def environment(self) -> dict[str, str]:
        """Of a process that logs here."""
        port = self._server.server_address[1]
        return {"WANDB_BASE_URL": f"http://127.0.0.1:{port}", "WANDB_API_KEY": KEY}

    def lose(self, how: Loss) -> None:
        """From now on nobody gets an answer: the port is "closed", or it takes connections and is "silent"."""
        self._lost = how
        if how == "closed":
            self._server.shutdown()  # who waits for a closed port does so without a pause
            self._server.socket.close()

    def answer(self, method: str, path: str, body: bytes) -> dict[str, Any]:
        if stream := re.fullmatch(r"/files/[^/]+/[^/]+/([^/]+)/file_stream", path):
            return self.file_stream(stream[1], json.loads(body))
        if path.endswith("/graphql") and method == "POST":
            content = json.loads(body)
            return self.graphql(content["query"], content.get("variables") or {})
        if method == "POST" and not path.startswith(TELEMETRY):
            self.unknown.append(path)
        return {}

    def graphql(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        operation = re.search(r"(?:query|mutation)\s+(\w+)", query)[1]
        with self._lock:
            self.asked.append((operation, variables))
        answer: Callable | None = getattr(self, f"_answer_{operation}", None)
        if answer is None:
            self.unknown.append(operation)
            return {"errors": [{"message": f"the stub does not know {operation}"}]}
        return {"data": answer(variables)}

    def file_stream(self, run_id: str, posted: dict[str, Any]) -> dict[str, Any]:
        run = self.runs[run_id]
        with self._lock:
            files = posted.get("files") or {}
            rows = files.get(HISTORY, {"content": [], "offset": 0})
            run.lines |= dict(enumerate(rows["content"], rows["offset"]))
            for summary in files.get(SUMMARY, {}).get("content", []):
                run.summary = summary
            run.exitcode = posted.get("exitcode", run.exitcode)
        return {}

    def _answer_Viewer(self, _):
        teams = {"edges": []}
        return {
            "viewer": {"id": "1", "entity": "tester", "username": "tester", "email": "", "flags": "{}", "teams": teams}
        }

    def _answer_ServerFeaturesQuery(self, _):
        return {"serverInfo": {"features": []}}

    def _answer_RunResumeStatus(self, variables):
        run = self.runs.get(variables["name"])
        bucket = run and {
            **{"id": run.id, "name": run.id, "displayName": run.id, "config": json.dumps(run.config), "tags": []},
            **{"notes": "", "summaryMetrics": run.summary, "logLineCount": 0, "eventsLineCount": 0, "eventsTail": "[]"},
            "wandbConfig": '{"t": {}}',  # without t, a run was made and never started
            "historyLineCount": len(run.lines),
            "historyTail": json.dumps([run.lines[max(run.lines)]] if run.lines else []),
        }
        return {"model": {"id": "1", "name": variables["project"], "entity": ENTITY, "bucket": bucket or None}}

    def _answer_UpsertBucket(self, variables):
        name = variables["name"]
        inserted = name not in self.runs
        run = self.runs.setdefault(name, Recorded(name))
        if variables.get("config"):
            run.config = json.loads(variables["config"])
        project = {"id": "1", "name": variables.get("project") or "skipscope", "entity": ENTITY}
        bucket = {
            **{"id": name, "name": name, "displayName": variables.get("displayName") or name, "description": ""},
            **{"config": json.dumps(run.config), "sweepName": None, "project": project},
            "historyLineCount": len(run.lines),
        }
        return {"upsertBucket": {"bucket": bucket, "inserted": inserted}}

    def _answer_OrganizationCoreWeaveOrganizationID(self, _):
        return {"entity": {"organization": None}}

    def _answer_CreateRunFiles(self, variables):
        host = self.environment["WANDB_BASE_URL"]
        files = [{"name": name, "uploadUrl": f"{host}/upload/{name}"} for name in variables["files"]]
        return {"createRunFiles": {"runID": variables["run"], "uploadHeaders": [], "files": files}}

    def _handler(stub) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if stub._lost == "silent":
                    stub._over.wait()
                if stub._lost:
                    self.close_connection = True
                    return
                answer = json.dumps(stub.answer(self.command, self.path, body)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_PUT = do_POST

            def log_message(self, *_):
                """Not to the console."""

        return Handler
