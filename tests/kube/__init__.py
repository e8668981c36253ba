"""Kubernetes for tests: a fake API server that keeps the protocol, a kubelet, and the contract that the fake and a real API
server are both held to.

store.py    objects, versions, changes, garbage collection    patching.py   merge and strategic merge patches
fake.py     the fake API server: real HTTP                     kubelet.py    a node, played by the test
access.py   how to reach an API server                         contract.py   what any API server does that the runtime relies on
cases.py    what the runtime does on any API server            specs.py      specs of instances
"""
