"""`draco autoscale`: what autoscalers need to know about nodes that do not exist yet."""
