#!/usr/bin/env bash
# An aarch64 Python for qemu-user: aarch64_python.sh FOLDER [REQUIREMENT...] unpacks Debian's arm64 Python and the
# aarch64 wheels of pip requirements (default: numpy) into FOLDER, whose `python` then starts it. Needs no root and
# leaves the system's apt alone; a folder that is complete is left as it is. PYTHON names the Python whose pip is used.
set -euo pipefail
folder=$(realpath -m "$1")
shift
requirements=("${@:-numpy}")
done="$folder/complete"
if [[ -f $done && $(<"$done") == "${requirements[*]}" ]]; then exit 0; fi
mkdir -p "$folder"/{root,debs,apt/lists/partial,apt/cache/archives/partial}
touch "$folder/apt/status"
rm -f "$done"

# The system's sources, read for arm64 into lists of our own.
options=(-o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State="$folder/apt"
  -o Dir::State::status="$folder/apt/status" -o Dir::State::lists="$folder/apt/lists"
  -o Dir::Cache="$folder/apt/cache" -o Acquire::Languages=none -o APT::Sandbox::User="$(id -un)"
  -o Acquire::Retries=3 -o Debug::NoLocking=1 -qq)
apt-get "${options[@]}" update
minimal=$(apt-cache "${options[@]}" depends python3-minimal | sed -n 's/.*Depends: \(python3\.[0-9]*\)-minimal$/\1/p' | head -n 1)
wanted=("$minimal-minimal" "lib$minimal-minimal" "lib$minimal-stdlib" libc6 libgcc-s1 libstdc++6 zlib1g libbz2-1.0
  libcrypt1 libexpat1 libffi8 liblzma5 libuuid1)
for package in libssl3 libssl3t64; do # its name depends on the release
  if apt-cache "${options[@]}" show "$package" >/dev/null 2>&1; then wanted+=("$package") && break; fi
done
(cd "$folder/debs" && apt-get "${options[@]}" download "${wanted[@]}")
for deb in "$folder"/debs/*.deb; do dpkg -x "$deb" "$folder/root"; done

packages="$folder/root/usr/local/lib/$minimal/dist-packages"
platforms=()
for version in 2_28 2_27 2_17; do platforms+=(--platform "manylinux_${version}_aarch64"); done
"${PYTHON:-python3}" -m pip install --quiet --no-deps --upgrade --only-binary=:all: "${platforms[@]}" \
  --python-version "${minimal#python}" --implementation cp --target "$packages" "${requirements[@]}"

# Children that Python starts by sys.executable must go through the emulator, too.
printf 'import sys; sys.executable = "%s"\n' "$folder/python" >"$packages/emulated.pth"
cat >"$folder/python" <<SHELL
#!/bin/sh
PYTHONHOME="$folder/root/usr" exec qemu-aarch64-static \${QEMU_AARCH64_CPU:+-cpu "\$QEMU_AARCH64_CPU"} -L "$folder/root" \\
  "$folder/root/usr/bin/$minimal" "\$@"
SHELL
chmod +x "$folder/python"
rm -rf "$folder/debs" "$folder/apt"
printf '%s' "${requirements[*]}" >"$done"
