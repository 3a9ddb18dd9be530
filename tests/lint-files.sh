#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Lint everything that is not Python: C by clang-format, the kernel module also by gcc, sparse and
# checkpatch, shell by shellcheck, the systemd unit by systemd-analyze. Also check the spelling of
# all files.
set -euo pipefail
cd "$(dirname "$0")/.."

# tracked and new files, except ignored ones
list=$(git ls-files --cached --others --exclude-standard | while read -r file; do
	if [[ -f $file ]]; then printf '%s\n' "$file"; fi
done)

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT

mapfile -t files <<<"$list"
build/venv/bin/codespell "${files[@]}"
echo "codespell: ${#files[@]} files"

mapfile -t c_files < <(grep -E '\.(c|h|cpp)$' <<<"$list")
clang-format --dry-run --Werror "${c_files[@]}"
echo "clang-format: ${#c_files[@]} files"

# The module is built against the headers of Debian's kernel, not those of the running kernel.
# linux-headers-amd64 depends on the package that contains them.
kernel=$(dpkg-query -W -f '${Depends}' linux-headers-amd64 | grep -o 'linux-headers-[^ ,]*' | head -1)
cp -r kmod "$stage/kmod"
# C=2: sparse checks every file. -Wno-context: sparse's lock contexts cannot describe a function
# that returns with a lock held on some paths only. -g0: the kernel's own flags ask for debugging
# information, which takes a fifth of the time and is not used here.
if ! make -C "$stage/kmod" -j"$(nproc)" KDIR="/usr/src/$kernel" W=1 KCFLAGS="-Werror -g0" \
	C=2 CF="-Wno-context -Wsparse-error" >"$stage/kmod.log" 2>&1; then
	cat "$stage/kmod.log" >&2
	exit 1
fi
echo "kernel module: no warnings of gcc and sparse against $kernel"

# linux-source is an archive whose extraction takes seconds. It is extracted once for each version.
archive=$(dpkg-query -L "$(dpkg-query -W -f '${Depends}' linux-source | grep -o 'linux-source-[^ ,]*')" |
	grep '\.tar\.xz$')
if [[ ! build/checkpatch/checkpatch.pl -nt $archive ]]; then
	mkdir -p build/checkpatch
	tar -xJf "$archive" --touch -C build/checkpatch --strip-components=2 \
		--wildcards '*/scripts/'{checkpatch.pl,spelling.txt,const_structs.checkpatch}
fi

# checkpatch IGNORED-TYPES FILE...
checkpatch() {
	perl build/checkpatch/checkpatch.pl --no-tree --strict --quiet --no-summary --show-types --terse \
		--max-line-length=100 --ignore "$1" -f "${@:2}"
}
# UNCOMMENTED_DEFINITION demands a comment for every lock, but a local "spinlock_t *ptl" needs none.
always=UNCOMMENTED_DEFINITION
mapfile -t kernel_files < <(grep -E '^kmod/[^/]*\.[ch]$' <<<"$list" | grep -Ev '/(compat|sentinel_(uapi|trace))\.h$')
checkpatch "$always" "${kernel_files[@]}"
# The module is built for kernels 6.1 to 7.3, so compat.h compares LINUX_VERSION_CODE with
# constants. CONSTANT_COMPARISON misreads these comparisons.
checkpatch "$always,LINUX_VERSION_CODE,CONSTANT_COMPARISON" kmod/compat.h
# BIT_MACRO demands BIT(), which the programs in user space that include this header do not have.
checkpatch "$always,BIT_MACRO" kmod/sentinel_uapi.h
# TRACE_EVENT() is laid out as in the kernel's own trace headers, which checkpatch rejects.
checkpatch "$always,PARENTHESIS_ALIGNMENT,OPEN_ENDED_LINE" kmod/sentinel_trace.h
# bpf/ is excluded: its C is in bcc's dialect (map.lookup(), BPF_HASH()), not in kernel style.
echo "checkpatch: $((${#kernel_files[@]} + 3)) files"

# A script names its interpreter in its first line; other files may quote such a line further down.
mapfile -t shell_files < <(while read -r file; do
	read -r first <"$file" || true
	if [[ $first =~ ^'#!'.*(/| )(ba)?sh( |$) ]]; then printf '%s\n' "$file"; fi
done <<<"$list")
shellcheck "${shell_files[@]}"
echo "shellcheck: ${#shell_files[@]} files"

# Stage the unit together with the programs that it starts, because `systemd-analyze verify` looks
# for them.
if command -v systemd-analyze >/dev/null && systemd-analyze security --help | grep -q -- --offline; then
	mkdir -p "$stage/usr/local/bin" "$stage/bin" "$stage/etc/systemd/system"
	sed 's,@PREFIX@,/usr/local,; s,@DOCDIR@,/usr/local/share/doc/sentineld,' \
		systemd/sentineld.service.in >"$stage/etc/systemd/system/sentineld.service"
	install -m755 /bin/true "$stage/usr/local/bin/sentineld"
	install -m755 /bin/true "$stage/bin/kill"
	# verify only warns about an unknown key, so any output counts as a failure.
	said=$(systemd-analyze verify --root="$stage" --man=no --recursive-errors=no sentineld.service 2>&1)
	if [[ $said ]]; then printf '%s\n' "$said" >&2; exit 1; fi
	systemd-analyze security --root="$stage" --offline=yes --threshold=29 sentineld.service | tail -1
else
	echo "systemd-analyze is missing or older than 250: only the tests in the guest check the unit"
fi
