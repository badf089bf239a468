#!/usr/bin/env bash
# For a GPU machine that has torch, triton and transformers but no network: downloads here, as wheels for its Python,
# what pagechat needs besides, and says how to install them there.
#
#   tests/gpu/wheels.sh [FOLDER [PYTHON]]      default: .whl 3.12
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=${1:-.whl} python=${2:-3.12}
packages=(msgspec pyzmq gguf typer shellingham annotated-doc platformdirs llguidance
          prometheus_client opentelemetry-api
          fastapi starlette uvicorn pydantic pydantic_core annotated-types typing-inspection typing_extensions
          pytest pytest-xdist execnet pluggy iniconfig pytest-timeout pytest-asyncio hypothesis sortedcontainers)
platforms=(manylinux_2_39_x86_64 manylinux_2_25_x86_64 manylinux_2_35_x86_64 manylinux_2_34_x86_64 manylinux_2_31_x86_64
           manylinux_2_28_x86_64 manylinux_2_27_x86_64 manylinux_2_26_x86_64 manylinux_2_24_x86_64
           manylinux_2_17_x86_64 manylinux2014_x86_64 manylinux_2_12_x86_64 manylinux1_x86_64)
pinned=(nvidia-cuda-sanitizer-api==13.5.25)  # for tests/gpu/sanitize.sh
for package in "${packages[@]}"; do
    pinned+=("$(grep -i "^${package}==" constraints.txt)")
done
python3 -m pip download --quiet --no-deps --only-binary=:all: --implementation cp --python-version "$python" \
    "${platforms[@]/#/--platform=}" --dest "$folder" "${pinned[@]}"
cat <<EOF
Wheels are in $folder. On the GPU machine, in a copy of this folder:
  python3 -m pip install --no-index --no-deps --target /tmp/site $folder/*.whl
  export PYTHONPATH=/tmp/site
  python3 -m pytest tests/gpu
  python3 -m pagechat.bench engine --help
EOF
