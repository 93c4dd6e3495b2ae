"""HTTP servers of this machine, each for one test."""

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Service(BaseHTTPRequestHandler):
    """Answers requests that come over kept connections."""

    protocol_version = "HTTP/1.1"

    def handle(self):
        # A client that goes away during an answer has its own reasons.
        with contextlib.suppress(ConnectionError):
            super().handle()

    def answer(self, status, headers, body=b""):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def never_answer(self):
        """Waits until the client disconnects."""
        self.rfile.read(1)
        self.close_connection = True

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def served(service):
    """Serves on a free port, and yields the server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), service) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield server
        finally:
            server.shutdown()
