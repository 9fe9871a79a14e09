"""How Draco talks to Kubernetes: one way to connect, one way to watch, one way to write.

Owns requests to the API server and what is built on them: stores that follow a collection, the work queue, leader election,
Events, and finding out what a cluster can do. Decides nothing about devices.

Rooms: `errors`, `clock`, `connection` (bytes over HTTP), `kubeconfig`, `authentication` and `incluster` (where credentials come
from), `client` (typed calls), `retry`, `store`, `watching` and `informer` (following a collection), `queue`, `election`, `events`
(what happened), `notes` (what is the case), `discovery`.
"""
