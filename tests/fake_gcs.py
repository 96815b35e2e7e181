"""A stand-in for Google Cloud Storage on this machine: the part of its JSON API that gcsfs, orbax and tensorstore
use, with the conditional writes that tensorstore's database relies on. Objects live in memory.
"""

import base64
import email
import hashlib
import itertools
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

_OBJECT = re.compile(r"/b/(?P<bucket>[^/]+)/o/(?P<name>[^/]+)$")
_LISTING = re.compile(r"/b/(?P<bucket>[^/]+)/o/?$")
_BUCKET = re.compile(r"/b/(?P<bucket>[^/]+)$")
_COPY = re.compile(
    r"/b/(?P<bucket>[^/]+)/o/(?P<name>[^/]+)/(?P<how>rewriteTo|copyTo|moveTo)(/b/[^/]+)?/o/(?P<to>[^/]+)$"
)
_CONDITIONS = ("ifGenerationMatch", "ifGenerationNotMatch")


class Refused(Exception):
    """An answer other than 200."""


class FakeGcs:
    """A server with one bucket; `with FakeGcs() as gcs:` runs it at `gcs.url`.

    Attributes:
      objects: name -> (content, generation).
      forbidden: while true every request is answered by 403.
    """

    def __init__(self, bucket: str = "bucket") -> None:
        self.bucket, self.forbidden = bucket, False
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.uploads: dict[str, tuple[str, bytes]] = {}
        self.lock, self.numbers = threading.RLock(), itertools.count(1)
        handler = type("Handler", (_Handler,), {"gcs": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *args: None  # clients that were killed
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "FakeGcs":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def environment(self) -> dict[str, str]:
        """What tells the clients of a process to come here, without credentials."""
        return {
            "STORAGE_EMULATOR_HOST": self.url,
            "TENSORSTORE_GCS_HTTP_URL": self.url,
            "GCE_METADATA_ROOT": "127.0.0.1:9",  # nobody there: no credentials to wait for
            "GCE_METADATA_HOST": "127.0.0.1:9",
            "NO_GCE_CHECK": "true",
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }

    def names(self, prefix: str = "") -> list[str]:
        """The objects that begin so."""
        with self.lock:
            return sorted(name for name in self.objects if name.startswith(prefix))

    def put(self, name: str, content: bytes, query: dict[str, str]) -> dict:
        self.check(name, query)
        self.objects[name] = (content, next(self.numbers))
        return self.describe(name)

    def check(self, name: str, query: dict[str, str]) -> None:
        generation = self.objects[name][1] if name in self.objects else 0
        if "ifGenerationMatch" in query and int(query["ifGenerationMatch"]) != generation:
            raise Refused(412)
        if "ifGenerationNotMatch" in query and int(query["ifGenerationNotMatch"]) == generation:
            raise Refused(304)

    def describe(self, name: str) -> dict:
        if name not in self.objects:
            raise Refused(404)
        content, generation = self.objects[name]
        return {
            "kind": "storage#object", "name": name, "bucket": self.bucket, "id": f"{self.bucket}/{name}",
            "size": str(len(content)), "generation": str(generation), "metageneration": "1",
            "etag": str(generation), "md5Hash": base64.b64encode(hashlib.md5(content).digest()).decode(),
            "storageClass": "STANDARD",
            "timeCreated": "2026-01-01T00:00:00.000Z", "updated": "2026-01-01T00:00:00.000Z",
            "contentType": "application/octet-stream",
        }  # fmt: skip

    def listing(self, query: dict[str, str]) -> dict:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        items, prefixes = [], set()
        for name in self.names(prefix):
            rest = name[len(prefix) :]
            if name < query.get("startOffset", "") or name >= query.get("endOffset", "\U0010ffff"):
                continue
            if delimiter and delimiter in rest:
                prefixes.add(prefix + rest.partition(delimiter)[0] + delimiter)
            else:
                items.append(self.describe(name))
        return {"kind": "storage#objects", "items": items, "prefixes": sorted(prefixes)}


class _Handler(BaseHTTPRequestHandler):
    gcs: FakeGcs
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def handle_any(self) -> None:
        body = self._body()
        try:
            with self.gcs.lock:
                if self.gcs.forbidden:
                    raise Refused(403)
                status, headers, content = self._answer(self.command, self.path, body)
        except Refused as refused:
            (status,), headers = refused.args, {}
            content = json.dumps({"error": {"code": status, "message": f"refused with {status}"}}).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status == 304:
            content = b""
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = handle_any  # noqa: N815

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            chunks = []
            while size := int(self.rfile.readline(), 16):
                chunks.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(chunks)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, method: str, url: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        gcs, parts = self.gcs, urlsplit(url)
        query = {key: values[0] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
        if parts.path.startswith("/batch"):
            return self._batch(body)
        for pattern in (_COPY, _OBJECT, _LISTING, _BUCKET):
            if match := pattern.search(parts.path):
                break
        else:
            raise Refused(404)
        found = {key: unquote(value) for key, value in match.groupdict().items()}
        if found["bucket"] != gcs.bucket:
            raise Refused(404)
        if pattern is _BUCKET:
            return _json({"kind": "storage#bucket", "name": gcs.bucket, "id": gcs.bucket, "location": "US"})
        if pattern is _COPY:
            content = gcs.objects[found["name"]][0] if found["name"] in gcs.objects else None
            if content is None:
                raise Refused(404)
            made = gcs.put(found["to"], content, {})
            if found["how"] == "moveTo":
                del gcs.objects[found["name"]]
            return _json({"done": True, "resource": made} if found["how"] == "rewriteTo" else made)
        if pattern is _LISTING:
            return _json(gcs.listing(query)) if method == "GET" else self._upload(query, body)
        name = found["name"]
        if method == "DELETE":
            gcs.describe(name)
            gcs.check(name, query)
            del gcs.objects[name]
            return 204, {}, b""
        description = gcs.describe(name)
        gcs.check(name, query)
        if query.get("alt") != "media" and "/download/" not in parts.path:
            return _json(description)
        return self._media(*gcs.objects[name])

    def _media(self, content: bytes, generation: int) -> tuple[int, dict[str, str], bytes]:
        headers = {"x-goog-generation": str(generation), "x-goog-stored-content-length": str(len(content))}
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if wanted is None:
            return 200, headers, content
        if wanted[1]:
            start, stop = int(wanted[1]), min(int(wanted[2] or len(content)), len(content) - 1) + 1
        else:
            start, stop = max(0, len(content) - int(wanted[2])), len(content)
        if start >= len(content):
            raise Refused(416)
        return (
            206,
            headers | {"Content-Range": f"bytes {start}-{stop - 1}/{len(content)}"},
            content[start:stop],
        )

    def _upload(self, query: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        gcs, how = self.gcs, query.get("uploadType")
        if "upload_id" in query:  # a piece of a resumable upload
            name, content = gcs.uploads[query["upload_id"]]
            content += body
            gcs.uploads[query["upload_id"]] = name, content
            if self.headers.get("Content-Range", "").endswith("/*"):
                return 308, {"Range": f"bytes=0-{len(content) - 1}"}, b""
            return _json(gcs.put(name, content, query))
        if how == "resumable":
            name, number = query.get("name") or json.loads(body)["name"], str(next(gcs.numbers))
            gcs.uploads[number] = name, b""
            kept = "".join(f"&{key}={query[key]}" for key in _CONDITIONS if key in query)
            at = f"{gcs.url}/upload/storage/v1/b/{gcs.bucket}/o?uploadType=resumable&upload_id={number}{kept}"
            return 200, {"Location": at}, b""
        if how == "multipart":
            about, content = _mime_parts(self.headers["Content-Type"], body)
            return _json(gcs.put(json.loads(about)["name"], content, query))
        return _json(gcs.put(query["name"], body, query))

    def _batch(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        answers = []
        for number, part in enumerate(_mime_parts(self.headers["Content-Type"], body)):
            method, url, _ = part.decode().split(" ", 2)
            try:
                status, _, content = self._answer(method, url, b"")
            except Refused as refused:
                status, content = refused.args[0], b"{}"
            answers.append(
                f"--batch\r\nContent-Type: application/http\r\nContent-ID: <response-{number + 1}>\r\n\r\n"
                f"HTTP/1.1 {status} answer\r\nContent-Type: application/json\r\n\r\n{content.decode()}\r\n"
            )
        return (
            200,
            {"Content-Type": "multipart/mixed; boundary=batch"},
            ("".join(answers) + "--batch--\r\n").encode(),
        )


def _mime_parts(content_type: str, body: bytes) -> list[bytes]:
    whole = email.message_from_bytes(f"Content-Type: {content_type}\r\n\r\n".encode() + body)
    boundary = b"--" + whole.get_boundary().encode()
    # gcsfs ends its lines with a line feed alone.
    pieces = [
        re.split(rb"\r?\n\r?\n", piece.lstrip(b"\r\n"), maxsplit=1)[1] for piece in body.split(boundary)[1:-1]
    ]
    return [piece[:-2] if piece.endswith(b"\r\n") else piece.removesuffix(b"\n") for piece in pieces]


def _json(value: dict) -> tuple[int, dict[str, str], bytes]:
    return 200, {"Content-Type": "application/json"}, json.dumps(value).encode()
