// SPDX-License-Identifier: Apache-2.0
/* Reads programs from standard input and runs each in new processes. */
#define _GNU_SOURCE
#include "truth.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROGRAM_SECONDS 120

int main(void)
{
	while (program_read(stdin)) {
		pid_t pid;
		int status;

		fflush(stdout);
		pid = fork();
		if (pid == 0) {
			setpgid(0, 0);
			/* messages of failed checks are part of the results */
			dup2(STDOUT_FILENO, STDERR_FILENO);
			alarm(PROGRAM_SECONDS);
			control_run();
			exit(0);
		}
		CHECK(pid > 0 && waitpid(pid, &status, 0) == pid, "fork");
		kill(-pid, SIGKILL);
		printf("end %d\n", status);
		fflush(stdout);
	}
	return 0;
}
