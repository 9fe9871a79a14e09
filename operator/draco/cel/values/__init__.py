"""What expressions compute with: values, their types and texts, and devices as selectors see them."""
