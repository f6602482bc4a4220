"""Hubs on this machine: one that accepts connections and never answers, and one that serves a folder slowly."""

import hashlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def digest(body: bytes) -> str:
    return hashlib.sha1(body).hexdigest()


@contextmanager
def silent_hub() -> Iterator[tuple[str, list[socket.socket]]]:
    """The address of a hub that never answers, and the connections it was asked by."""
    connections: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    connections.append(server.accept()[0])
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", connections
        server.shutdown(socket.SHUT_RDWR)
    for connection in connections:
        connection.close()


@contextmanager
def slow_hub(name: str, folder: Path, seconds: float) -> Iterator[str]:
    """The address of a hub with one repository, which takes its time for everything but to say that it is there."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if name not in path:
                return self.reply(b"{}")
            time.sleep(seconds)
            if path == f"/api/models/{name}/tree/{COMMIT}":
                files = [
                    {"type": "file", "path": each.name, "size": each.stat().st_size, "oid": digest(each.read_bytes())}
                    for each in folder.iterdir()
                ]
                return self.reply(json.dumps(files).encode())
            if path.startswith("/api/models/"):
                return self.reply(json.dumps({"id": name, "sha": COMMIT}).encode())
            wanted = folder / path.rpartition("/")[2]
            if not wanted.is_file():
                return self.send_error(404)
            return self.reply(wanted.read_bytes())

        def reply(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", f'"{digest(body)}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
