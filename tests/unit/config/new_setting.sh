#!/usr/bin/env bash
# Adds a load setting to a copy of the tree, by the diff of docs/house/adding-a-setting.md. The diff must touch three source
# files. In the copy the tests of the rows must pass, and the worker's settings must compile. SANITIZE: the
# sanitizers of the build, or nothing. usage: new_setting.sh BUILD_DIR SANITIZE
set -euo pipefail
cd "$(dirname "$0")/../../.."
build=$(realpath "$1")
copy=$(mktemp -d "${TMPDIR:-/tmp}/new_setting.XXXXXX")
trap 'rm -rf "$copy"' EXIT
cc=(cc ${2:+-fsanitize=$2} -std=c11 -D_GNU_SOURCE -w -DSLUICE_DATE='""' -I"$copy" -I"$copy/gen")

sed -n '/^```diff$/,/^```$/p' docs/house/adding-a-setting.md | sed '1d;$d' >"$copy/new.diff"
n=$(grep -c '^+++ ' "$copy/new.diff")
[ "$n" = 3 ] || { echo "the diff touches $n files, not 3"; exit 1; }
git ls-files -z base proto engine kernels server/worker tests/unit/config tests/unit/base |
    grep -zE '\.(h|proto)$|^(base/settings|proto/config|tests/unit/config|server/worker/base)/' | xargs -0 cp --parents -t "$copy"
(cd "$copy" && git apply --unsafe-paths new.diff)

# The messages, generated as proto/CMakeLists.txt does it.
mkdir "$copy/gen"
proto=sluice/manager/v1/types
cd "$copy/proto"
mapfile -t files < <(find . -name '*.proto' -printf '%P\n')
protoc -I . --include_imports --descriptor_set_out="$copy/all.fds" "${files[@]}"
"$build/proto/proto_tool" strip "$copy/all.fds" "$copy/c.fds"
protoc-c --descriptor_set_in="$copy/c.fds" --c_out="$copy/gen" "${files[@]}"
"$build/proto/proto_tool" presence "$copy/all.fds" $proto.proto "$copy/gen/$proto.pb-c.h" "$copy/gen/$proto.pb-c.c"
cd "$copy"

# The linker takes the copied objects first, and the rest from the libraries.
sources=("gen/$proto.pb-c.c" base/settings/load_settings.c proto/config/model_config.c tests/unit/config/test_model_config.c)
"${cc[@]}" -o test "${sources[@]}" "$build/proto/libsluice_proto.a" "$build/base/libsluice_base.a" $(pkg-config --libs libprotobuf-c cmocka inih) -lm -lpthread
./test
"${cc[@]}" -fsyntax-only server/worker/base/settings.c
