"""Following collections: list, watch, and what is known of them."""
