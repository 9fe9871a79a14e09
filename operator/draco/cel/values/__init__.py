"""Values of expressions, their types and texts, and devices as selectors see them."""
