"""`draco autoscale`: what autoscalers are told of nodes that do not exist yet."""
