"""Objects as they are written: manifests, older versions, and what an API server refuses to store."""
