"""How Draco talks to Kubernetes: one way to connect, one way to watch, one way to write.

Owns requests to the API server and what is built on them. Decides nothing about devices.

Rooms: `events` (said of objects), over `watch` (following collections), over `connect` (credentials, bytes, typed requests).
Beside them: `queue` (what reconcilers work off), `election` (one leader), `discovery` (what the cluster can do), `listeners` (who
is told of something), `clock`, `errors`.
"""
