"""Which devices a request means, and what taking them out of service would do."""
