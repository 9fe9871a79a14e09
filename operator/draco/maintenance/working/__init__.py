"""The Jobs that do the work, and how it is verified."""
