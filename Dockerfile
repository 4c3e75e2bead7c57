# docker build --build-arg SKIPSCOPE_COMMIT="$(git describe --always --dirty=+ --abbrev=12)" -t skipscope .
# mkdir -p runs data && docker run --rm --gpus all --user "$(id -u):$(id -g)" \
#     -v "$PWD/runs:/app/runs" -v "$PWD/data:/app/data" skipscope fit --config configs/res20.yaml
# Any other Debian or Ubuntu with Python 3.11 to 3.13, its venv module and headers will do: --build-arg BASE=...
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS wheels
COPY deploy/requirements.lock /tmp/
# Only wheels, each checked against the hash in the lock; nothing is built, no version is chosen.
RUN python3 -m venv /opt/venv && \
    /opt/venv/bin/pip install --no-cache-dir --only-binary :all: --no-deps --require-hashes -r /tmp/requirements.lock

FROM ${BASE}
# torch.compile needs a C++ compiler at run time. The base image decides its version.
# hadolint ignore=DL3008
RUN command -v g++ || \
    { apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*; }
COPY --from=wheels /opt/venv /opt/venv
WORKDIR /app
COPY main.py LICENSE ./
COPY lightning_app lightning_app
COPY callbacks callbacks
COPY skipscope skipscope
COPY configs configs

# Any user id may run it, whether /etc/passwd has it or not. Files that are neither runs nor data stay in the container: W&B
# keeps a socket in TMPDIR, which network volumes may refuse; checkpoints are written beside their target and need no TMPDIR.
RUN chmod -R a+rX . && mkdir -m 1777 runs data && /opt/venv/bin/python -m compileall -q .
# The commit that runs record: the image has no .git.
ARG SKIPSCOPE_COMMIT=""
ENV SKIPSCOPE_COMMIT=$SKIPSCOPE_COMMIT \
    PATH=/opt/venv/bin:$PATH \
    HOME=/tmp \
    USER=skipscope \
    MPLCONFIGDIR=/tmp/matplotlib \
    WANDB_CACHE_DIR=/tmp/wandb-cache \
    WANDB_CONFIG_DIR=/tmp/wandb-config \
    WANDB_DATA_DIR=/tmp/wandb-data \
    PYTHONUNBUFFERED=1
VOLUME ["/app/data", "/app/runs"]
USER 1000

# Exec form: SIGTERM reaches Python, which saves and exits with 143. No HEALTHCHECK: a job is no service.
ENTRYPOINT ["/opt/venv/bin/python", "/app/main.py"]
CMD ["--help"]
