"""Kind without a registry: a private Docker Engine, and node images made of Draco's own programs.

Owns both, and the GPUs of kind's nodes. Must not decide which engine a cluster uses: the provider does.

Rooms: `docker` (an engine's client), `engine` (the private engine), `machines` (kind's nodes: their GPUs, power and images),
`images` (which node images an engine has), `node_image` (what is in one), `rootfs` (its files, of Debian's packages),
`archive` (the layout of images).
"""
