#!/usr/bin/env bash
# The kernels on small shapes under NVIDIA's compute-sanitizer: reads and writes out of bounds, and races between the
# threads of a block. Needs an NVIDIA GPU and the package nvidia-cuda-sanitizer-api, which wheels.sh brings.
#
#   tests/gpu/sanitize.sh [FOLDER]      where the package lies; default: the site-packages of python3
set -euo pipefail
cd "$(dirname "$0")/../.."
site=${1:-$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')}
sanitizer=$(find "$site/nvidia" -path '*/compute-sanitizer/compute-sanitizer' | head -1)
chmod +x "$(dirname "$sanitizer")"/* # pip installs its helpers without
tests=(tests/gpu/test_kernels.py -k "borders or (products and 98) or (read_once and 512 and not 200) or rotation or move or norm_and_swiglu or (window and 33)")
# Without torch's own allocator each tensor is an allocation, whose bounds the tool knows.
export PYTORCH_NO_CUDA_MEMORY_CACHING=1
for tool in memcheck racecheck; do
    echo "compute-sanitizer --tool $tool"
    "$sanitizer" --tool "$tool" --error-exitcode 9 \
        --kernel-name-exclude kns=at6native --kernel-name-exclude kns=cublas --kernel-name-exclude kns=nvjet \
        python3 -m pytest -q -p no:cacheprovider "${tests[@]}"
done
