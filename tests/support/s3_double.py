# SPDX-License-Identifier: MIT
"""A store on the loopback that speaks S3 and recomputes every signature (AWS Signature Version 4).

Of CompleteMultipartUpload the answers can get lost (`lost_answers`: how many), or come after white space (`complete_seconds`).
`break_every` is of bad_server.py."""
import datetime
import hashlib
import hmac
import re
import urllib.parse
from xml.sax.saxutils import escape

from bad_server import Handler, Server

KEY_ID, SECRET, TOKEN = "AKIDOFATEST", "secret/of+a=test", "token/of+a=test"
REGION = "eu-test-1"
PAGE = 3  # objects of a listing


def digest(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


class S3Handler(Handler):
    def do_GET(self):
        key, query = self.begin(self.signature_fault()) or (None, None)
        if query is None:
            return None
        if not key:
            return self.server.mistreat_list(self) or self.list(query)
        if self.mistreated(key):
            return None
        return self.answer(key) if (self.server.folder / key).is_file() else self.error(404, "NoSuchKey")

    def begin(self, fault):
        """The key and the query; None if the request was refused."""
        self.note()
        if fault:
            with self.server.lock:
                self.server.faults.append(fault)
            return self.error(403, "SignatureDoesNotMatch" if fault == "signature" else fault) and None
        bucket, _, key = self.name().partition("/")
        if bucket != self.server.bucket:
            return self.error(404, "NoSuchBucket") and None
        return key, dict(urllib.parse.parse_qsl(self.path.partition("?")[2], keep_blank_values=True))

    def begin_writing(self):
        """The body, and where it goes; None if the request was refused."""
        content = self.body()
        given = self.headers.get("X-Amz-Content-Sha256", "")
        what = self.begin(self.signature_fault() or (None if hashlib.sha256(content).hexdigest() == given else "XAmzContentSHA256Mismatch"))
        return (*what, content) if what and not self.mistreated(what[0]) else None

    def store(self, key, content):
        path = self.server.folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def do_PUT(self):
        what = self.begin_writing()
        if what is None:
            return None
        key, query, content = what
        tag = f'"{hashlib.md5(content).hexdigest()}"'
        if "uploadId" not in query:
            self.store(key, content)
        else:
            with self.server.lock:
                if query["uploadId"] not in self.server.parts:
                    return self.error(404, "NoSuchUpload")
                self.server.parts[query["uploadId"]][int(query["partNumber"])] = (tag, content)
        return self.refuse(200, ETag=tag)

    def do_POST(self):
        what = self.begin_writing()
        if what is None:
            return None
        key, query, content = what
        if "uploads" in query:
            with self.server.lock:
                name = f"upload-{self.server.uploads}"
                self.server.uploads += 1
                self.server.parts[name] = {}
            return self.page(200, f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId></InitiateMultipartUploadResult>")
        text = content.decode().replace("&quot;", '"')
        given = [(re.search(r"<PartNumber>(\d+)<", part)[1], re.search("<ETag>(.*?)<", part)[1]) for part in re.findall("<Part>.*?</Part>", text)]
        parts = self.server.parts.get(query["uploadId"])
        if parts is None:
            return self.error(404, "NoSuchUpload")
        if [(int(number), tag) for number, tag in given] != [(number, parts[number][0]) for number in sorted(parts)]:
            return self.error(400, "InvalidPart")
        self.store(key, b"".join(parts[number][1] for number in sorted(parts)))
        with self.server.lock:
            del self.server.parts[query["uploadId"]]
            self.server.counts_of_parts[key] = len(parts)
            self.server.lost_answers -= 1
        if self.server.lost_answers >= 0:
            return self.lose()
        text = "<CompleteMultipartUploadResult><ETag>\"whole\"</ETag></CompleteMultipartUploadResult>"
        return self.page_after(self.server.complete_seconds, text) if self.server.complete_seconds else self.page(200, text)

    def do_HEAD(self):
        """Of an object: its size, how many parts it was sent in, when it was stored."""
        self.note()
        key = urllib.parse.unquote(self.path).lstrip("/").partition("/")[2]
        path = self.server.folder / key
        found = self.signature_fault() is None and path.is_file()
        self.send_response(200 if found else 404)
        if found:
            self.send_header("Content-Length", str(path.stat().st_size))
            self.send_header("ETag", f'"{"0" * 32}-{self.server.counts_of_parts.get(key, 1)}"')
            self.send_header("Last-Modified", self.date_time_string(path.stat().st_mtime))
        self.end_headers()

    def do_DELETE(self):
        what = self.begin_writing()
        if what is None:
            return None
        with self.server.lock:
            self.server.parts.pop(what[1]["uploadId"], None)
        return self.refuse(204)

    def error(self, status, code):
        return self.page(status, f"<Error><Code>{code}</Code><Message>No.</Message><StringToSign>{SECRET}</StringToSign></Error>")

    def list(self, query):
        if query.get("max-keys") == "0":
            return self.page(200, "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>")
        assert query["list-type"] == "2" and query["delimiter"] == "/" and query["encoding-type"] == "url", query
        prefix, after = query["prefix"], query.get("continuation-token", "")
        folder = self.server.folder / prefix.rpartition("/")[0]
        keys = sorted(str(p.relative_to(self.server.folder)) for p in folder.iterdir() if p.is_file())
        keys = [key for key in keys if key.startswith(prefix) and "+/" + key > after]
        page, more = keys[:PAGE], len(keys) > PAGE
        with self.server.lock:
            self.server.lists += 1
        contents = "".join(f"<Contents><Key>{escape(urllib.parse.quote_plus(key))}</Key></Contents>" for key in page)
        token = f"<NextContinuationToken>{escape('+/' + page[-1])}</NextContinuationToken>" if more else ""
        return self.page(200, f"<ListBucketResult><EncodingType>url</EncodingType><IsTruncated>{str(more).lower()}</IsTruncated>{token}{contents}</ListBucketResult>")

    def signature_fault(self):
        """The rules of the documents, from the bytes that came; None if all is well."""
        given = self.headers.get("Authorization", "")
        if not given:
            return "AccessDenied"
        algorithm, _, fields = given.partition(" ")
        parts = dict(part.strip().split("=", 1) for part in fields.split(","))
        key_id, day, region, service, end = parts["Credential"].split("/")
        if (algorithm, service, end) != ("AWS4-HMAC-SHA256", "s3", "aws4_request") or region != REGION:
            return "AuthorizationHeaderMalformed"
        if key_id != KEY_ID:
            return "InvalidAccessKeyId"
        if self.headers.get("X-Amz-Security-Token") != TOKEN:
            return "InvalidToken"
        stamp = self.headers["X-Amz-Date"]
        moment = datetime.datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.timezone.utc)
        if abs((datetime.datetime.now(datetime.timezone.utc) - moment).total_seconds()) > 900 or stamp[:8] != day:
            return "RequestTimeTooSkewed"
        signed = parts["SignedHeaders"].split(";")
        must = {"host", "x-amz-date", "x-amz-content-sha256", "x-amz-security-token"}
        if not must <= set(signed) or signed != sorted(signed):
            return "headers"
        path, _, query = self.path.partition("?")
        path = urllib.parse.quote(urllib.parse.unquote_to_bytes(path), safe="/-_.~")
        pairs = sorted((urllib.parse.quote(name, safe="-_.~"), urllib.parse.quote(value, safe="-_.~"))
                       for name, value in urllib.parse.parse_qsl(query, keep_blank_values=True))
        canonical = "\n".join([
            self.command, path, "&".join(f"{name}={value}" for name, value in pairs),
            *(f"{name}:{' '.join(self.headers[name].split())}" for name in signed), "", ";".join(signed),
            self.headers["X-Amz-Content-Sha256"]])
        to_sign = "\n".join([algorithm, stamp, f"{day}/{region}/s3/aws4_request",
                             hashlib.sha256(canonical.encode()).hexdigest()])
        key = ("AWS4" + SECRET).encode()
        for part in (day, region, "s3", "aws4_request"):
            key = digest(key, part)
        return None if digest(key, to_sign).hex() == parts["Signature"] else "signature"


class S3Double(Server):
    handler = S3Handler

    def __init__(self, folder, bucket, mistreat=lambda handler, key, number: False):
        self.bucket, self.faults, self.lists, self.parts = bucket, [], 0, {}
        self.uploads, self.counts_of_parts = 0, {}
        self.complete_seconds, self.lost_answers = 0, 0  # of CompleteMultipartUpload
        self.mistreat_list = lambda handler: False
        super().__init__(folder, mistreat)

    def env(self, **more):
        return {"AWS_ENDPOINT_URL_S3": self.url, "AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET,
                "AWS_SESSION_TOKEN": TOKEN, "AWS_REGION": REGION, **more}
