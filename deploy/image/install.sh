#!/bin/sh
# Install Holdfast into a new virtual environment: install.sh SOURCE TARGET EXTRAS
# Versions are those of requirements/all.txt, and uv checks their hashes. TARGET/sbom.cdx.json lists what was installed.
# Run by the Dockerfile, and by tests/packaging/test_image.py in a folder of its own.
set -eu
source=$1 target=$2 extras=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

uv build --quiet --wheel --out-dir "$work" "$source"
uv venv --quiet "$target"
uv pip install --quiet --python "$target/bin/python" --compile-bytecode --link-mode copy \
  --constraint "$source/requirements/all.txt" "holdfast-jobs[$extras] @ file://$(echo "$work"/*.whl)"
uvx --quiet --from "cyclonedx-bom==7.5.0" cyclonedx-py environment --output-reproducible --of JSON \
  --output-file "$target/sbom.cdx.json" "$target/bin/python"
"$target/bin/holdfast" --version
