# The image of operator and agent, which runs with a read-only root: make it with `make image`, or with `docker build -t draco .`
# BASE is any image that has Python 3.11 or newer as python3; all stages need the same one.
ARG BASE=docker.io/library/python:3.13-slim-trixie

FROM ${BASE} AS build
WORKDIR /src
COPY requirements/runtime.txt requirements/build.txt requirements/
RUN python3 -m venv /opt/build \
 && /opt/build/bin/python -m pip install --quiet --no-cache-dir --require-hashes --only-binary=:all: -r requirements/build.txt
RUN python3 -m venv --without-pip /opt/draco \
 && /opt/build/bin/python -m pip --python /opt/draco/bin/python install --quiet --no-cache-dir --no-compile --require-hashes \
      --only-binary=:all: -r requirements/runtime.txt
COPY pyproject.toml README.md LICENSE ./
COPY operator operator
RUN /opt/build/bin/python -m hatchling build -t wheel -d /dist \
 && /opt/build/bin/python -m pip --python /opt/draco/bin/python install --quiet --no-cache-dir --no-compile --no-deps --no-index \
      /dist/draco_dra-*.whl \
 && /opt/draco/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/draco/lib

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
ENV PATH=/opt/draco/bin:$PATH PYTHONUNBUFFERED=1
USER 65532:65532
ENTRYPOINT ["python", "-m", "draco_local.simulator.image"]

FROM ${BASE} AS draco
COPY --from=build /opt/draco /opt/draco
ENV PATH=/opt/draco/bin:$PATH PYTHONUNBUFFERED=1
USER 65532:65532
ENTRYPOINT ["draco"]
