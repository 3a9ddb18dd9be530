#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Lint what is not Python: C by clang-format, shell by shellcheck, the unit by systemd-analyze.
set -euo pipefail
cd "$(dirname "$0")/.."

# tracked and new files, without those that git ignores
list=$(git ls-files --cached --others --exclude-standard | while read -r file; do
	if [[ -f $file ]]; then printf '%s\n' "$file"; fi
done)

mapfile -t c_files < <(grep -E '\.(c|h|cpp)$' <<<"$list")
clang-format --dry-run --Werror "${c_files[@]}"
echo "clang-format: ${#c_files[@]} files"

# Only a file's first line says what it is; others may quote a script.
# A script says so in its first line; others may quote such a line further down.
mapfile -t shell_files < <(while read -r file; do
	read -r first <"$file" || true
	if [[ $first =~ ^'#!'.*(/| )(ba)?sh( |$) ]]; then printf '%s\n' "$file"; fi
done <<<"$list")
shellcheck "${shell_files[@]}"
echo "shellcheck: ${#shell_files[@]} files"

# The unit, installed into a folder of its own so that verify finds what it starts.
if command -v systemd-analyze >/dev/null && systemd-analyze security --help | grep -q -- --offline; then
	stage=$(mktemp -d)
	trap 'rm -rf "$stage"' EXIT
	mkdir -p "$stage/usr/local/bin" "$stage/etc/systemd/system"
	sed 's,@PREFIX@,/usr/local,; s,@DOCDIR@,/usr/local/share/doc/sentineld,' \
		systemd/sentineld.service.in >"$stage/etc/systemd/system/sentineld.service"
	install -m755 /bin/true "$stage/usr/local/bin/sentineld"
	# An unknown key is but a warning to it; here any word is one too many.
	said=$(systemd-analyze verify --root="$stage" --man=no --recursive-errors=no sentineld.service 2>&1)
	if [[ $said ]]; then printf '%s\n' "$said" >&2; exit 1; fi
	systemd-analyze security --root="$stage" --offline=yes --threshold=35 sentineld.service | tail -1
else
	echo "systemd-analyze is missing or older than 250: the unit is not checked here (the guest's tests do)"
fi
