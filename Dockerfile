# One image for a SuperLink, SuperNodes and the commands: docker build -t fedclade .
# For a small image without CUDA, give an index of CPU builds of torch: --build-arg PIP_EXTRA_INDEX_URL=...
FROM python:3.12-slim
ARG PIP_EXTRA_INDEX_URL

RUN useradd --create-home fedclade
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
# The compiler builds the optional kernel and does not stay.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && pip install --no-cache-dir --constraint constraints.txt '.[flower]' \
    && apt-get purge --yes --auto-remove gcc libc6-dev && rm -rf /var/lib/apt/lists/*
USER fedclade
WORKDIR /home/fedclade
CMD ["fedclade", "--help"]
