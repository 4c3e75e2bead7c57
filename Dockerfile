# docker build -t skipscope .
# docker run --rm -v "$PWD/runs:/app/runs" -v "$PWD/data:/app/data" skipscope fit --config configs/res20.yaml
# GPUs: add --gpus all. Any other base with Python 3.11 to 3.13 works: --build-arg BASE=...
ARG BASE=python:3.11-slim
FROM ${BASE}

WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE main.py ./
COPY lightning_app lightning_app
COPY callbacks callbacks
COPY configs configs
RUN python3 -m pip install --no-cache-dir -c constraints.txt -e .

# Any user id may run it: what is written outside the run folder goes to places that all may write to.
RUN mkdir -p runs data && chmod 777 runs data
ENV HOME=/tmp \
    MPLCONFIGDIR=/tmp/matplotlib \
    WANDB_DATA_DIR=/tmp/wandb-data \
    WANDB_CACHE_DIR=/tmp/wandb-cache \
    WANDB_CONFIG_DIR=/tmp/wandb-config \
    PYTHONUNBUFFERED=1
USER 1000

# Exec form: SIGTERM reaches Python, which saves and exits with 143.
ENTRYPOINT ["python3", "main.py"]
CMD ["--help"]
