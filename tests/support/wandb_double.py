# SPDX-License-Identifier: MIT
"""A double of the Weights & Biases service on the loopback: it keeps what clients send, and misbehaves as a test asks.

The real client and ours talk to it alike. `WandbDouble().runs` maps (entity, project, run id) to a Run.
"""
import base64
import hashlib
import json
import threading
import time
import urllib.parse

import bad_server

KEY = "0123456789abcdef0123456789abcdef01234567"  # what the double takes; it looks like a real one


class Run:
    """What the service holds of a run."""

    def __init__(self, entity, project, name):
        self.entity, self.project, self.name = entity, project, name
        self.config, self.summary, self.display_name, self.host, self.tags = {}, {}, name, None, []
        self.lines = {"wandb-history.jsonl": [], "wandb-events.jsonl": [], "output.log": []}
        self.files, self.uploaded = {}, []
        self.complete, self.exit_code, self.preempting = False, None, False

    @property
    def history(self):
        """The rows, of which those whose _step does not rise are dropped, as the service does."""
        kept, last = [], -1
        for line in self.lines["wandb-history.jsonl"]:
            row = json.loads(line, parse_constant=str)
            if row["_step"] > last:
                kept.append(row)
                last = row["_step"]
        return kept

    @property
    def axes(self):
        """The column that the charts of a column have as their axis, None for an axis."""
        defined = self.config["_wandb"]["value"]["m"]
        return {entry["1"]: defined[entry["5"] - 1]["1"] if "5" in entry else None for entry in defined}

    @property
    def events(self):
        return [json.loads(line, parse_constant=str) for line in self.lines["wandb-events.jsonl"]]

    def take(self, body):
        """A request of file_stream: lines at their places, and how the run stands."""
        for name, piece in (body.get("files") or {}).items():
            content = piece["content"]
            if name == "wandb-summary.json":
                self.summary = json.loads(content[-1], parse_constant=str)
                continue
            lines, offset = self.lines.setdefault(name, []), piece["offset"]
            if offset > len(lines):
                lines.extend([""] * (offset - len(lines)))
            lines[offset:offset + len(content)] = content
        self.uploaded += body.get("uploaded") or []
        self.preempting = self.preempting or bool(body.get("preempting"))
        if body.get("complete"):
            self.complete, self.exit_code = True, body.get("exitcode")


class Handler(bad_server.Handler):
    answer_is_lost = False  # what was asked for is done
    wbufsize = -1  # an answer is one write: a second one would wait for the client's acknowledgement

    def do_GET(self):
        double = self.server.double
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = urllib.parse.unquote(self.path.split("?")[0])
        kind = "graphql" if path == "/graphql" else path.strip("/").split("/")[-1] if path.endswith("/file_stream") else \
            path.strip("/").split("/")[0]
        with double.lock:
            number = double.counts[kind] = double.counts.get(kind, 0) + 1
            double.requests.append((self.command, self.path, dict(self.headers), body))
        if double.mistreat(self, kind, number):
            return
        self.answer_is_lost = double.lose(kind, number)
        if kind in ("graphql", "file_stream") and not self.is_let_in():
            return self.json(401, {"errors": [{"message": "user is not logged in"}]})
        with double.lock:
            if kind == "graphql":
                self.json(200, self.graphql(json.loads(body)))
            elif kind == "file_stream":
                run = double.run(*path.strip("/").split("/")[1:4])
                run.take(json.loads(body))
                self.json(200, {"exitcode": None, "limits": {}})
            elif kind == "storage":
                entity, project, name, *file = path.strip("/").split("/")[1:]
                files = double.run(entity, project, name).files
                if self.command == "PUT":
                    files["/".join(file)], body = body, b"{}"
                self.bytes(200, body or files["/".join(file)])
            else:
                self.json(200, {})

    do_POST = do_PUT = do_GET

    def is_let_in(self):
        given = self.headers.get("Authorization", "")
        return given == "Basic " + base64.b64encode(f"api:{self.server.double.key}".encode()).decode()

    def json(self, status, content, **headers):
        return self.bytes(status, json.dumps(content).encode(), **headers)

    def bytes(self, status, content, **headers):
        if self.answer_is_lost:
            self.close_connection = True
            return True
        return self.reply(status, content, Content_Type="application/json", **headers)

    def hang_up(self, sent=b""):
        """Ends the connection in the middle of an answer."""
        self.wfile.write(sent)
        self.close_connection = True
        return True

    def graphql(self, request):
        query, variables = request["query"], request.get("variables") or {}
        double = self.server.double
        if "upsertBucket" in query:
            return {"data": {"upsertBucket": self.upsert(variables)}}
        if "createRunFiles" in query:
            return {"data": {"createRunFiles": self.create_files(variables)}}
        if "missingOk" in query:
            return {"data": {"model": self.resume_state(variables)}}
        if "serverInfo" in query:
            return {"data": {"serverInfo": {"features": []}}}
        if "files(" in query:
            return {"data": {"project": self.files(variables)}}
        if "viewer" in query:
            return {"data": {"viewer": {"id": "user", "entity": double.entity, "username": double.entity, "flags": "{}",
                                        "teams": {"edges": []}}}}
        return {"data": {}}

    def upsert(self, variables):
        double = self.server.double
        entity = variables.get("entity") or double.entity
        project = variables.get("project") or "uncategorized"
        name = variables.get("name") or variables.get("id") or "unnamed"
        known = (entity, project, name) in double.runs
        run = double.run(entity, project, name)
        if variables.get("config"):
            run.config = json.loads(variables["config"])
        run.display_name = variables.get("displayName") or run.display_name
        run.host = variables.get("host") or run.host
        run.tags = variables.get("tags") or run.tags
        if variables.get("summaryMetrics"):
            run.summary = json.loads(variables["summaryMetrics"])
        return {"bucket": {"id": f"id-{name}", "name": name, "displayName": run.display_name, "description": None, "config": None,
                           "sweepName": None, "historyLineCount": len(run.lines["wandb-history.jsonl"]),
                           "project": {"id": "p", "name": project, "entity": {"id": "e", "name": entity}}}, "inserted": not known}

    def create_files(self, variables):
        double = self.server.double
        entity = variables.get("entity") or variables.get("entityName") or double.entity
        project, name = variables.get("project") or variables["projectName"], variables.get("name") or variables.get("run") or variables["runName"]
        files = variables["files"]
        return {"runID": f"id-{name}", "uploadHeaders": [], "files": [
            {"name": file, "uploadUrl": f"{double.storage_url}/storage/{entity}/" + urllib.parse.quote(f"{project}/{name}/{file}")}
            for file in files]}

    def resume_state(self, variables):
        double = self.server.double
        key = (variables.get("entity") or double.entity, variables["project"], variables["name"])
        run = double.runs.get(key)
        if run is None:
            return {"bucket": None}
        lines = run.lines
        return {"bucket": {
            "id": f"id-{run.name}", "name": run.name, "displayName": run.display_name, "config": json.dumps(run.config),
            "summaryMetrics": json.dumps(run.summary), "historyLineCount": len(lines["wandb-history.jsonl"]),
            "eventsLineCount": len(lines["wandb-events.jsonl"]), "logLineCount": len(lines["output.log"]), "tags": run.tags,
            "historyTail": json.dumps(lines["wandb-history.jsonl"][-1:]), "eventsTail": json.dumps(lines["wandb-events.jsonl"][-1:]),
            "wandbConfig": json.dumps(run.config)}}

    def files(self, variables):
        double = self.server.double
        run = double.runs.get((variables.get("entity") or double.entity, variables["project"], variables.get("name") or variables.get("run")))
        if run is None:
            return {"run": None}
        wanted = variables.get("fileNames") or variables.get("files") or variables.get("names")
        edges = []
        for name, content in run.files.items():
            if wanted and name not in wanted:
                continue
            url = f"{double.url}/storage/{run.entity}/{urllib.parse.quote(run.project)}/{run.name}/{urllib.parse.quote(name)}"
            edges.append({"node": {"id": name, "name": name, "url": url, "directUrl": url, "sizeBytes": len(content), "mimetype": "",
                                   "md5": base64.b64encode(hashlib.md5(content).digest()).decode(), "updatedAt": "2026-01-01T00:00:00"},
                          "cursor": name})
        return {"run": {"fileCount": len(run.files), "files": {"edges": edges, "pageInfo": {"endCursor": "", "hasNextPage": False}}}}


class Server(bad_server.Server):
    handler = Handler


class WandbDouble:
    """The service, used as a context. `mistreat(handler, kind, number)` may answer a request itself and return True, by json(), bytes() and hang_up() of the
    handler; `lose(kind, number)` says whose answers are lost after they were obeyed. Kinds are graphql, file_stream, storage; the number counts
    the requests of a kind from 1."""

    def __init__(self, key=KEY, entity="somebody"):
        self.key, self.entity = key, entity
        self.lock = threading.RLock()
        self.runs, self.counts, self.requests = {}, {}, []
        self.mistreat = lambda handler, kind, number: False
        self.lose = lambda kind, number: False
        self.server = Server("/nonexistent")
        self.server.double = self
        self.url = self.storage_url = self.server.url

    def run(self, entity, project, name):
        return self.runs.setdefault((entity, project, name), Run(entity, project, name))

    def only_run(self):
        assert len(self.runs) == 1, list(self.runs)
        return next(iter(self.runs.values()))

    def env(self, **more):
        return {"WANDB_BASE_URL": self.url, "WANDB_API_KEY": self.key, **more}

    def __enter__(self):
        return self

    def __exit__(self, *args):
        self.server.__exit__(*args)


if __name__ == "__main__":
    double = WandbDouble()
    print(double.url, flush=True)
    while True:
        time.sleep(3600)
