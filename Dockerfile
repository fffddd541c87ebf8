# One image for a SuperLink, SuperNodes and the commands: docker build -t fedclade .
# For a small image without CUDA, give an index of CPU builds of torch: --build-arg PIP_EXTRA_INDEX_URL=...
FROM python:3.12-slim
ARG PIP_EXTRA_INDEX_URL

RUN useradd --create-home fedclade
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
RUN pip install --no-cache-dir --constraint constraints.txt '.[flower]'
USER fedclade
WORKDIR /home/fedclade
CMD ["fedclade", "--help"]
