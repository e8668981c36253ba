"""How to reach an API server, real or fake, and plain calls to it for tests."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

PATIENCE = 60.0


class ApiRefused(Exception):
    """An answer with a status of 400 or more."""

    def __init__(self, response: httpx2.Response) -> None:
        super().__init__(f"{response.status_code}: {response.text[:500]}")
        self.code = response.status_code
        self.status: dict[str, Any] = response.json() if "json" in response.headers.get("content-type", "") else {}
        self.headers = response.headers


@dataclass(frozen=True)
class Access:
    """An API server, a user and a namespace."""

    url: str
    token: str
    namespace: str
    kubeconfig: Path
    ca_file: Path | None = None

    def client(self) -> httpx2.AsyncClient:
        verify = ssl.create_default_context(cafile=str(self.ca_file)) if self.ca_file else False
        headers = {"Authorization": f"Bearer {self.token}"}
        return httpx2.AsyncClient(base_url=self.url, headers=headers, verify=verify, timeout=PATIENCE, trust_env=False)

    def write_kubeconfig(self) -> None:
        cluster: dict[str, Any] = {"server": self.url}
        if self.ca_file:
            cluster["certificate-authority"] = str(self.ca_file)
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": self.token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": self.namespace}}],
        }
        self.kubeconfig.write_text(json.dumps(content))
        self.kubeconfig.chmod(0o600)


class Api:
    """Plain calls, as any client could make them."""

    def __init__(self, access: Access) -> None:
        self.access, self.http = access, access.client()

    def path(self, plural: str, name: str = "", group: str = "") -> str:
        root = f"/apis/{group}/v1" if group else "/api/v1"
        return f"{root}/namespaces/{self.access.namespace}/{plural}" + (f"/{name}" if name else "")

    async def call(self, method: str, path: str, body: Any = None, kind: str = "application/json", **parameters: str) -> Any:
        headers = {"Content-Type": kind} if body is not None else {}
        content = json.dumps(body) if body is not None else None
        response = await self.http.request(method, path, content=content, headers=headers, params=parameters)
        if response.status_code >= 400:
            raise ApiRefused(response)
        return response.json() if "json" in response.headers.get("content-type", "") else response.text

    async def get(self, path: str, **parameters: str) -> Any:
        return await self.call("GET", path, **parameters)

    async def create(self, path: str, body: Any) -> Any:
        return await self.call("POST", path, body)

    async def merge(self, path: str, body: Any) -> Any:
        return await self.call("PATCH", path, body, "application/merge-patch+json")

    async def strategic(self, path: str, body: Any) -> Any:
        return await self.call("PATCH", path, body, "application/strategic-merge-patch+json")

    async def delete(self, path: str, body: Any = None) -> Any:
        return await self.call("DELETE", path, body)

    async def watch(self, path: str, **parameters: str) -> AsyncIterator[dict[str, Any]]:
        """The messages of a watch."""
        async with self.http.stream("GET", path, params={"watch": "true", **parameters}) as response:
            if response.status_code >= 400:
                await response.aread()
                raise ApiRefused(response)
            async for line in response.aiter_lines():
                yield json.loads(line)

    async def close(self) -> None:
        await self.http.aclose()
