#!/usr/bin/env bash
# Builds every test, example and benchmark, and packs them with the data they read, to be run on a machine without Rust:
#   .ci/bundle.sh [tests]                      here: writes target/bundle.tar.xz; with `tests` no examples and benchmarks
#   tar xf bundle.tar.xz && bundle/run.sh      there: runs every test; exit code 1 if one fails
# If all pass and there is a GPU, run.sh writes bundle/gpu.md: which commit passed, where and when. That is kept as
# benches/record/gpu.md, the one place that says on which commit the suite last passed on a GPU.
# The tests are those that `cargo test` builds; the command, examples and benchmarks are release builds.
# What needs a Rust compiler is not in it: the tests named `compiler`, and those in the documentation.
set -euo pipefail
cd "$(dirname "$0")/.."
bundle=target/bundle
rm -rf "$bundle"
mkdir -p "$bundle/bin"

# The machine that runs it has a GPU, this one need not.
export THALWEG_TEST_PTX=1
cargo build --locked --release -p thalweg-cli
cp target/release/thalweg "$bundle/bin/thalweg"
# Copies those binaries that cargo names on standard input that are of these kinds.
pack() {
    python3 -c '
import json, os, shutil, sys
kinds = {"test": "test", "example": "example", "bench": "bench", "lib": "unit", "bin": "unit"}
left_out = {"compiler"}
for line in sys.stdin:
    try:
        made = json.loads(line)
    except ValueError:
        continue
    if made.get("reason") != "compiler-artifact" or not made.get("executable") or made["target"]["name"] in left_out:
        continue
    kind, name = kinds.get(made["target"]["kind"][0]), made["target"]["name"]
    if kind not in sys.argv[2:] or kind == "unit" and not made["profile"]["test"]:
        continue
    folder, _, package = made["package_id"].split("/")[-1].partition("#")
    package = package.split("@")[0] if "@" in package else folder
    if kind == "test" and package != "thalweg":
        name = package + "." + name
    shutil.copy(made["executable"], os.path.join(sys.argv[1], kind + "." + name))
' "$bundle/bin" "$@"
}
# Those left out build kernels, macros and mutations, for which they need a compiler or the repository.
workspace=(--locked --workspace --exclude thalweg-ptx-builder --exclude thalweg-derive --exclude xtask --exclude mutations)
cargo test "${workspace[@]}" --no-run --lib --bins --tests --message-format=json | pack unit test
if [ "${1:-}" != tests ]; then
    # Unit tests need debug assertions, so those of release builds are left out.
    cargo bench "${workspace[@]}" --no-run --message-format=json | pack bench
    features=thalweg-train/collective,thalweg-train/cublaslt,thalweg-train/vision
    cargo build "${workspace[@]}" --release --examples --features "$features" --message-format=json | pack example
    (cd examples/split-textures && CARGO_TARGET_DIR=../../target/outside cargo build -q --release)
    cp target/outside/release/split-textures "$bundle/bin/example.split-textures"
fi
strip "$bundle"/bin/*
cp -r assets tests docs "$bundle/"
mkdir -p "$bundle/train/tests" "$bundle/loader/tests"
cp -r train/tests/golden "$bundle/train/tests/"
cp -r loader/tests/images "$bundle/loader/tests/"
git describe --always --abbrev=40 --dirty --exclude '*' > "$bundle/COMMIT"
cat > "$bundle/run.sh" <<'RUN'
#!/usr/bin/env bash
# Runs every test binary, JOBS at a time (1 if it is not set); each prints what devices it covered.
cd "$(dirname "$0")"
export THALWEG_BIN="$PWD/bin/thalweg"
rm -f gpu.md
binaries=0 runs=0
logs=$(mktemp -d)
# Runs a binary, and prints what it printed in one piece.
one() {
    local log=$logs/$1
    shift
    {
        echo "== $*"
        timeout 1800 "$@" > "$log" 2>&1 || { echo "FAILED: $*"; touch "$logs/failed"; }
        grep -vE '^(test .* ok|running .*|)$' "$log"
    } > "$log.shown"
    cat "$log.shown"
}
run() {
    case $* in bin/test.alone | *.steady | *.overlap | *.main?augment*) wait ;; esac
    while [ "$(jobs -rp | wc -l)" -ge "${JOBS:-1}" ]; do wait -n; done
    runs=$((runs + 1))
    one "$runs" "$@" &
    # These measure what a device does, or fall back to the CPU device where another one has taken all memory. So they
    # have it to themselves.
    case $* in bin/test.alone | *.steady | *.overlap | *.main?augment*) wait ;; esac
}
for test in bin/unit.* bin/test.*; do
    binaries=$((binaries + 1))
    # The command starts 600 times in its tests, and each start of a GPU takes half a second. So they run on the CPU
    # device, and those of results on every device, too: few at a time, because a command that finds no memory for its
    # context goes on with the CPU device, whose bits are others.
    if [ "$test" = bin/test.thalweg-cli.main ] && [ $# = 0 ]; then
        THALWEG_TEST_DEVICE=cpu run "$test"
        RUST_TEST_THREADS=4 run "$test" augment:: process:: results:: train::
    else
        run "$test" "$@"
    fi
done
wait
passed=$(awk '/^test result: ok/ { passed += $4 } END { print passed + 0 }' "$logs"/*[0-9])
[ -e "$logs/failed" ] && failed=1 || failed=0
rm -r "$logs"
echo "$binaries binaries, $passed tests passed"
gpus=$(bin/thalweg devices | grep '^cuda')
if [ $failed = 0 ] && [ $# = 0 ] && [ -n "$gpus" ]; then
    {
        echo "# The last run on a GPU in which every test passed"
        echo
        echo "\`bundle/run.sh\` of \`.ci/bundle.sh\` wrote this: $passed tests in $binaries binaries."
        echo
        echo "- commit: $(cat COMMIT)"
        echo "- date: $(date -u +%F)"
        echo "- driver: $(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -1)"
        sed 's/^/- device: /' <<< "$gpus"
    } > gpu.md
    echo "wrote $PWD/gpu.md: keep it as benches/record/gpu.md"
elif [ -z "$gpus" ]; then
    echo "NOT ON A GPU: only the CPU device was covered"
fi
exit $failed
RUN
chmod +x "$bundle/run.sh"
# The binaries have much in common, which a large dictionary finds.
XZ_OPT=--lzma2=preset=3,dict=400MiB tar cJf target/bundle.tar.xz -C target bundle
ls -l target/bundle.tar.xz
