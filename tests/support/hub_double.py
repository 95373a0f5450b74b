# SPDX-License-Identifier: MIT
"""A double of the Hugging Face hub on the loopback: repositories of models, Git LFS, commits. The real client and ours
talk to it alike.

`HubDouble().repos` maps "owner/name", of a data set "datasets/owner/name", to a Repo. Two servers: the hub itself, and the store to which LFS files go and from
which they come, which must never see a token. `mistreat(handler, step, number)` may answer itself and return True; steps are
whoami, repo, create, branch, preupload, batch, upload, complete, verify, head, paths, tree, commit, resolve, store, and after the work
was done completed and committed, whose answer handler.lose() loses. `complete_seconds` of white space come before a completion.
"""
import base64
import hashlib
import json
import threading
import urllib.parse

import bad_server

TOKEN = "hf_DoubleOfTheHubTakesThisToken00000"
MULTIPART_FROM = 100_000  # bytes


class Repo:
    def __init__(self, private):
        self.private = private
        self.branches = {"main": ["0" * 40]}  # ids of commits
        self.files = {"main": {}}  # branch -> path -> content
        self.lfs_paths = set()
        self.summaries = []


def blob_id(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class StoreHandler(bad_server.Handler):
    """What LFS files go through: signed addresses, no logins."""

    def do_PUT(self):
        self.note()
        hub = self.server.hub
        content = self.body()
        oid, _, part = self.path.partition("?")[0].lstrip("/").partition("/")
        if hub.mistreat_step(self, "upload", oid):
            return None
        if "signature=" not in self.path:
            return self.refuse(403)
        if part:
            hub.parts.setdefault(oid, {})[int(part)] = content
        elif hashlib.sha256(content).hexdigest() != oid:
            return self.refuse(400)
        else:
            hub.objects[oid] = content
        return self.refuse(200, ETag=f'"{hashlib.md5(content).hexdigest()}"')

    def do_GET(self):
        self.note()
        hub = self.server.hub
        oid = self.path.partition("?")[0].lstrip("/")
        if hub.mistreat_step(self, "store", oid):
            return None
        return self.send_range(hub.objects[oid], f'"{oid}"')

    def send_range(self, content, tag, **headers):
        first, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")
        start, end = int(first), min(int(last) + 1 if last else len(content), len(content))
        part = start > 0 or last != ""
        given = {"Content-Range": f"bytes {start}-{end - 1}/{len(content)}"} if part else {}
        return self.reply(206 if part else 200, content[start:end], ETag=tag, **given, **headers)


class HubHandler(StoreHandler):
    def do_HEAD(self):
        return self.do_GET()

    def do_PUT(self):
        return self.refuse(404)

    def json(self, value, status=200, **headers):
        return self.page(status, json.dumps(value), "application/json", **headers)

    def fault(self, status, code, text):
        return self.json({"error": text}, status, X_Error_Code=code, X_Error_Message=text)

    def route(self):
        path = urllib.parse.unquote(self.path.partition("?")[0]).strip("/")
        parts = path.split("/")
        alone = {"api/whoami-v2": "whoami", "api/validate-yaml": "validate", "api/repos/create": "create"}.get(path)
        if alone:
            return alone, None, []
        data_set = "datasets/" if "datasets" in (parts[0], *parts[1:2]) else ""
        if data_set and parts[0] == data_set[:-1]:
            parts = parts[1:]
        if parts[0] == "api" and parts[1:2] in (["models"], ["datasets"]):
            step = {"branch": "branch", "preupload": "preupload", "revision": "head", "paths-info": "paths", "tree": "tree", "commit": "commit"}
            return (step[parts[4]] if len(parts) > 4 else "repo"), data_set + "/".join(parts[2:4]), parts[5:]
        if ".git/info/lfs/" in path:
            return ("batch" if path.endswith("batch") else "verify"), path.split(".git/")[0], []
        if len(parts) > 3 and parts[2] == "resolve":
            return "resolve", data_set + "/".join(parts[:2]), parts[3:]
        if parts[0] == "complete":
            return "complete", None, parts[1:]
        return "unknown", None, []

    def do_GET(self):
        self.note()
        hub = self.server.hub
        content = self.body()
        step, name, rest = self.route()
        if hub.mistreat_step(self, step, name):
            return None
        if step == "complete":
            return self.complete(rest[0], json.loads(content))
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.fault(401, "", "Invalid username or password.")
        with hub.lock:
            if step == "whoami":
                return self.json({"name": "owner", "type": "user", "auth": {"type": "access_token", "accessToken": {"role": hub.role}}})
            if step == "validate":
                return self.json({"errors": [], "warnings": []})
            if step == "create":
                return self.create(json.loads(content))
            if name not in hub.repos:
                return self.fault(404, "RepoNotFound", "Repository not found")
            repo = hub.repos[name]
            if step == "repo":
                return self.json({"id": name, "private": repo.private, "sha": repo.branches["main"][-1], "siblings": [], "tags": []})
            if step == "batch":
                return self.batch(name, json.loads(content))
            if step == "verify":
                return self.verify(json.loads(content))
            branch = self.branch_of(repo, rest[0])
            if step == "branch":
                if rest[0] in repo.branches:
                    return self.fault(409, "", "Reference already exists")
                repo.branches[rest[0]], repo.files[rest[0]] = list(repo.branches["main"]), dict(repo.files["main"])
                return self.json({}, 201)
            if branch is None:
                return self.fault(404, "RevisionNotFound", "Invalid rev id")
            self.repo_name = name
            return getattr(self, step)(repo, branch, rest, content)

    do_POST = do_GET

    def branch_of(self, repo, revision):
        if revision in repo.branches:
            return revision
        return next((branch for branch, commits in repo.branches.items() if revision == commits[-1]), None)

    def create(self, asked):
        name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else f"owner/{asked['name']}"
        if name in self.server.hub.repos:
            return self.json({"error": "You already created this model repo", "url": f"{self.server.hub.url}/{name}"}, 409)
        private = asked["visibility"] == "private" if "visibility" in asked else asked["private"]
        self.server.hub.repos[name] = Repo(private)
        return self.json({"url": f"{self.server.hub.url}/{name}", "id": name, "name": name})

    def preupload(self, repo, branch, rest, content):
        answer = []
        for file in json.loads(content)["files"]:
            base64.b64decode(file["sample"], validate=True)
            lfs = file["path"].endswith((".pth", ".safetensors", ".png", ".bin")) or file["size"] > 1_000_000
            answer.append({"path": file["path"], "uploadMode": "lfs" if lfs else "regular", "shouldIgnore": file["path"].endswith(".ignored")})
        return self.json({"files": answer})

    def batch(self, name, asked):
        hub = self.server.hub
        assert asked["operation"] == "upload" and asked["hash_algo"] == "sha256", asked
        objects = []
        for thing in asked["objects"]:
            oid, size = thing["oid"], thing["size"]
            entry = {"oid": oid, "size": size}
            if oid not in hub.objects:
                store = f"{hub.store.url}/{oid}"
                upload = {"href": f"{store}?signature={hub.signature}"}
                if size > MULTIPART_FROM and "multipart" in asked.get("transfers", []):
                    urls = {f"{i + 1:05d}": f"{store}/{i + 1}?signature={hub.signature}" for i in range(-(-size // hub.chunk))}
                    upload = {"href": f"{hub.url}/complete/{oid}", "header": {"chunk_size": str(hub.chunk), **urls}}
                entry["actions"] = {"upload": upload, "verify": {"href": f"{hub.url}/{name}.git/info/lfs/verify"}}
            objects.append(entry)
        return self.json({"transfer": "multipart", "objects": objects})

    def complete(self, oid, asked):
        hub = self.server.hub
        parts = hub.parts.get(oid, {})
        tags = [f'"{hashlib.md5(parts[part["partNumber"]]).hexdigest()}"' for part in asked["parts"]]
        if tags != [part["etag"] for part in asked["parts"]] or sorted(parts) != [part["partNumber"] for part in asked["parts"]]:
            return self.fault(400, "", "parts do not fit")
        content = b"".join(parts[number] for number in sorted(parts))
        if hashlib.sha256(content).hexdigest() != oid:
            hub.parts.pop(oid)
            return self.fault(400, "", "the checksum does not fit")
        hub.objects[oid] = content
        if hub.mistreat_step(self, "completed", oid):
            return None
        return self.page_after(hub.complete_seconds, "{}") if hub.complete_seconds else self.json({})

    def verify(self, asked):
        content = self.server.hub.objects.get(asked["oid"])
        return self.json({}) if content is not None and len(content) == asked["size"] else self.fault(404, "", "no such object")

    def head(self, repo, branch, rest, content):
        return self.json({"sha": repo.branches[branch][-1], "id": "x", "siblings": [], "tags": [], "private": repo.private})

    def paths(self, repo, branch, rest, content):
        if self.headers["Content-Type"].startswith("application/json"):
            asked = json.loads(content)["paths"]
        else:
            asked = urllib.parse.parse_qs(content.decode())["paths"]
        found = []
        for path in asked:
            if path in repo.files[branch]:
                data = repo.files[branch][path]
                entry = {"type": "file", "path": path, "size": len(data), "oid": blob_id(data)}
                if path in repo.lfs_paths:
                    entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
                found.append(entry)
        return self.json(found)

    def tree(self, repo, branch, rest, content):
        """What is right in a folder, two entries a page."""
        folder = "/".join(rest[1:])
        prefix = folder + "/" if folder else ""
        entries = {}
        for path, data in sorted(repo.files[branch].items()):
            if path.startswith(prefix):
                name, below, _ = path[len(prefix):].partition("/")
                entries[prefix + name] = {"type": "directory" if below else "file", "path": prefix + name, "oid": blob_id(data),
                                          "size": 0 if below else len(data)}
        if not entries:
            return self.fault(404, "EntryNotFound", f"{folder} does not exist on {rest[0]}")
        entries = list(entries.values())
        begin = int(urllib.parse.parse_qs(self.path.partition("?")[2]).get("cursor", ["0"])[0])
        more = {"Link": f'<https://huggingface.invalid{self.path.partition("?")[0]}?cursor={begin + 2}>; rel="next"'}
        return self.json(entries[begin:begin + 2], **(more if begin + 2 < len(entries) else {}))

    def commit(self, repo, branch, rest, content):
        lines = [json.loads(line) for line in content.decode().splitlines()]
        header = lines[0]["value"]
        if header.get("parentCommit") not in (None, repo.branches[branch][-1]):
            return self.fault(412, "", "A commit has happened since. Please refresh and try again.")
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "lfsFile":
                if value["oid"] not in self.server.hub.objects:
                    return self.fault(400, "", "the object is not in the store")
                repo.files[branch][value["path"]] = self.server.hub.objects[value["oid"]]
                repo.lfs_paths.add(value["path"])
            else:
                repo.files[branch][value["path"]] = base64.b64decode(value["content"])
        repo.branches[branch].append(hashlib.sha1(content + repo.branches[branch][-1].encode()).hexdigest())
        repo.summaries.append(header["summary"])
        if self.server.hub.mistreat_step(self, "committed", None):
            return None
        oid = repo.branches[branch][-1]
        return self.json({"success": True, "commitOid": oid, "commitUrl": f"{self.server.hub.url}/{self.repo_name}/commit/{oid}", "hookOutput": ""})

    def resolve(self, repo, branch, rest, content):
        path = "/".join(rest[1:])
        if path not in repo.files[branch]:
            return self.fault(404, "EntryNotFound", "Entry not found")
        data = repo.files[branch][path]
        headers = {"X-Repo-Commit": repo.branches[branch][-1]}
        if path not in repo.lfs_paths:
            return self.send_range(data, f'"{blob_id(data)}"', **headers)
        oid = hashlib.sha256(data).hexdigest()
        self.server.hub.objects[oid] = data
        location = f"{self.server.hub.store.url}/{oid}?signature={self.server.hub.signature}"
        return self.refuse(302, **headers, X_Linked_Size=str(len(data)), X_Linked_ETag=f'"{oid}"', Location=location, ETag=f'"{oid}"')


class StoreServer(bad_server.Server):
    handler = StoreHandler


class HubServer(bad_server.Server):
    handler = HubHandler


class HubDouble:
    """Both servers. Used as a context."""

    def __init__(self, mistreat=lambda handler, step, number: False):
        self.repos, self.objects, self.parts = {}, {}, {}
        self.role, self.signature = "write", "canary-of-a-signature"
        self.chunk = 40_000  # bytes of a part
        self.lock, self.complete_seconds = threading.RLock(), 0
        self.steps, self.mistreat = {}, mistreat
        self.store, self.server = StoreServer("/nonexistent"), HubServer("/nonexistent")
        self.store.hub = self.server.hub = self

    def mistreat_step(self, handler, step, _what):
        with self.lock:
            number = self.steps[step] = self.steps.get(step, 0) + 1
        return self.mistreat(handler, step, number)

    def file(self, repo, path, branch="main"):
        return self.repos[repo].files[branch][path]

    @property
    def url(self):
        return self.server.url

    def env(self, **more):
        return {"HF_ENDPOINT": self.url, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1", **more}

    def __enter__(self):
        return self

    def __exit__(self, *args):
        for server in (self.server, self.store):
            server.__exit__(*args)
