// SPDX-License-Identifier: Apache-2.0
/*
 * Checks the kernel module with known accesses.
 *
 *     kmod-check            print the names of all checks
 *     kmod-check NAME...    run checks; status 0 if all pass
 */
#include "check.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct {
	const char *name;
	void (*run)(void);
} checks[] = {
	{"accesses", check_accesses},
	{"births", check_births},
	{"zero_page", check_zero_page},
	{"nodes", check_nodes},
	{"disarm", check_disarm},
	{"residency", check_residency},
	{"arguments", check_arguments},
	{"log", check_log},
	{"sparse", check_sparse},
	{"huge", check_huge},
	{"epoch_fd", check_epoch_fd},
	{"fork", check_fork},
	{"close", check_close},
	{"kill", check_kill},
	{"end", check_end},
	{"unknown", check_unknown},
	{"moved", check_moved},
	{"writes", check_writes},
	{"again", check_again},
	{"age", check_age},
	{"owner", check_owner},
	{"stalled", check_stalled},
	{"busy", check_busy},
	{"stress", check_stress},
	{"swap", check_swap},
	{"tracepoint", check_tracepoint},
	{"unhooked", check_unhooked},
	{"locked", check_locked},
	{"hooking", check_hooking},
	{"race", check_race},
};

#define CHECKS (sizeof(checks) / sizeof(*checks))

/* Runs a check in a new process group, so that all its processes can be killed at the end. */
static bool run(size_t index)
{
	pid_t pid;
	int status;

	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		setpgid(0, 0);
		checks[index].run();
		exit(0);
	}
	CHECK(pid > 0 && waitpid(pid, &status, 0) == pid, "fork");
	kill(-pid, SIGKILL);
	printf("%s: %s\n", checks[index].name, status ? "FAILED" : "ok");
	return status == 0;
}

int main(int argc, char **argv)
{
	bool ok = true;

	/* The target of the check `end` replaces itself by this program; see exec_sleep(). */
	if (argc == 2 && !strcmp(argv[1], "--sleep")) {
		pause();
		return 0;
	}
	for (size_t i = 0; argc < 2 && i < CHECKS; i++)
		puts(checks[i].name);
	for (int wanted = 1; wanted < argc; wanted++) {
		size_t i = 0;

		while (i < CHECKS && strcmp(argv[wanted], checks[i].name))
			i++;
		if (i == CHECKS) {
			fprintf(stderr, "no check named %s\n", argv[wanted]);
			return 2;
		}
		ok &= run(i);
	}
	return ok ? 0 : 1;
}
