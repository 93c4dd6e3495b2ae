"""A server of single connections, for what the real agent does not do on demand: stalls, halves, broken connections."""

import contextlib
import json
import os
import socket
import tempfile
import threading


def answer(status, body, fields=""):
    """Returns a whole answer."""
    data = json.dumps(body).encode()
    return f"HTTP/1.1 {status} X\r\ncontent-length: {len(data)}\r\n{fields}\r\n".encode() + data


GRANTED = answer(
    200,
    {
        "grant": "g1",
        "lease": None,
        "amounts": [{"rpm": 1}],
        "limits": [],
        "would_deny": None,
        "degraded": None,
    },
)


class Server:
    """Runs `serve(connection)` for each connection, one after the other, and keeps what was received."""

    def __init__(self, serve, is_unix=False):
        self.requests = []
        self.connections = 0
        self._serve = serve
        if is_unix:
            self.folder = tempfile.mkdtemp()
            path = os.path.join(self.folder, "agent.sock")
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(path)
            self.url = f"unix:{path}"
        else:
            self._listener = socket.create_server(("127.0.0.1", 0))
            self.url = "http://127.0.0.1:{}".format(self._listener.getsockname()[1])
        self._listener.listen()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._one, args=(Peer(sock, self.requests), self.connections), daemon=True).start()

    def _one(self, peer, number):
        with contextlib.suppress(OSError), peer.sock:
            self._serve(peer, number)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


class Peer:
    """The server's side of one connection."""

    def __init__(self, sock, requests):
        self.sock = sock
        self._requests = requests

    def read(self):
        """Reads a request; returns its path, fields and body, or None at the end."""
        data = b""
        while b"\r\n\r\n" not in data:
            got = self.sock.recv(65536)
            if not got:
                return None
            data += got
        head, _, body = data.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        fields = dict(line.split(": ", 1) for line in lines[1:])
        while len(body) < int(fields["content-length"]):
            body += self.sock.recv(65536)
        request = (lines[0].split(" ")[1], fields, json.loads(body))
        self._requests.append(request)
        return request

    def send(self, data):
        self.sock.sendall(data)

    def answer_all(self, data=GRANTED):
        """Answers every request of the connection in the same way."""
        while self.read():
            self.send(data)

    def answer_all_of(self, current):
        """Answers every request with what the list has then."""
        while self.read():
            self.send(current[0])

    def wait_for_end(self):
        """Returns once the client has closed the connection."""
        while self.sock.recv(65536):
            pass
