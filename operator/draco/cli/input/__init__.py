"""What commands read: files of manifests, live clusters, and the one on top of the other."""
