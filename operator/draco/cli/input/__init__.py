"""What commands read: manifest files, live clusters, or files on top of a cluster."""
