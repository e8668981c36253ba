"""A way to the database that a test can close: `hole` swallows everything from then on, and answers nobody."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable

from sqlalchemy.engine import make_url


class Proxy:
    """Forwards to a Postgres until it is made a hole."""

    def __init__(self, url: str) -> None:
        to = make_url(url)
        self._target = (to.host or "127.0.0.1", to.port or 5432)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = to.set(host="127.0.0.1", port=self._listener.getsockname()[1]).render_as_string(hide_password=False)
        self._hole = threading.Event()
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._run(self._accept)

    def hole(self) -> None:
        """From now on nothing comes through, in either direction; connections stay open."""
        self._hole.set()

    def close(self) -> None:
        self._hole.set()
        self._listener.shutdown(socket.SHUT_RDWR)  # a close alone does not wake a thread that waits for a connection
        for thread in self._threads:
            thread.join()
        for one in (self._listener, *self._open):
            one.close()

    def _run(self, target: Callable[..., None], *arguments: socket.socket) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(client)
            if not self._hole.is_set():
                server = socket.create_connection(self._target)
                self._open.append(server)
                self._run(self._forward, client, server)

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        other = {client: server, server: client}
        try:
            while not self._hole.is_set():
                for ready in select.select([client, server], [], [], 0.05)[0]:
                    data = ready.recv(65536)
                    if self._hole.is_set():
                        return
                    if not data:
                        client.close()
                        server.close()
                        return
                    other[ready].sendall(data)
        except (OSError, ValueError):
            return
