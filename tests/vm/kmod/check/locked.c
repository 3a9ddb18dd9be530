// SPDX-License-Identifier: Apache-2.0
/*
 * A target that keeps its address space locked does not block its controller's close().
 * One thread waits for a FUSE server while it holds mmap_lock for reading. Another thread
 * waits to get mmap_lock for writing. While this second thread waits, no further thread
 * gets mmap_lock for reading.
 */
#define _GNU_SOURCE
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGES 600ul
#define LIMIT_S 30
#define FILE_NODE 2

struct request {
	struct fuse_in_header header;
	char body[FUSE_MIN_READ_BUFFER];
};

static void answer(int device, uint64_t unique, int error, const void *body, size_t bytes)
{
	char reply[512];
	struct fuse_out_header header = {.len = sizeof(header) + bytes, .error = error, .unique = unique};

	memcpy(reply, &header, sizeof(header));
	memcpy(reply + sizeof(header), body, bytes);
	CHECK(write(device, reply, header.len) == (ssize_t)header.len, "reply: %s", strerror(errno));
}

static struct fuse_attr attributes(uint64_t node)
{
	return (struct fuse_attr){
		.ino = node,
		.size = PAGE,
		.mode = node == FILE_NODE ? S_IFREG | 0644 : S_IFDIR | 0755,
		.nlink = 1,
	};
}

/* Serves one file. Never answers a request to read the file, but sets *stalled to 1. */
static void serve(int device, volatile int *stalled)
{
	static struct request request;
	struct fuse_init_out init = {
		.major = FUSE_KERNEL_VERSION,
		.minor = 31, /* one of the minor versions that the kernel supports */
		.max_write = PAGE,
	};
	struct fuse_entry_out entry = {.nodeid = FILE_NODE, .attr_valid = 100, .entry_valid = 100};
	struct fuse_attr_out attr = {.attr_valid = 100};
	struct fuse_open_out open = {0};

	entry.attr = attributes(FILE_NODE);
	for (;;) {
		ssize_t got = read(device, &request, sizeof(request));
		uint64_t unique = request.header.unique;

		CHECK(got > 0, "/dev/fuse: %s", strerror(errno));
		attr.attr = attributes(request.header.nodeid);
		switch (request.header.opcode) {
		case FUSE_INIT:
			answer(device, unique, 0, &init, sizeof(init));
			break;
		case FUSE_LOOKUP:
			answer(device, unique, 0, &entry, sizeof(entry));
			break;
		case FUSE_GETATTR:
			answer(device, unique, 0, &attr, sizeof(attr));
			break;
		case FUSE_OPEN:
			answer(device, unique, 0, &open, sizeof(open));
			break;
		case FUSE_READ:
			*stalled = 1;
			break;
		case FUSE_FORGET:
		case FUSE_BATCH_FORGET:
		case FUSE_INTERRUPT:
			break;
		default:
			answer(device, unique, -ENOSYS, NULL, 0);
		}
	}
}

struct server {
	pid_t pid;
	char path[64];
	volatile int *stalled;
};

static struct server server_start(void)
{
	struct server server = {.path = "/tmp/kmod-check-XXXXXX"};
	int device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	char options[128];

	CHECK(device >= 0 && mkdtemp(server.path), "/dev/fuse (modprobe fuse): %s", strerror(errno));
	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0", device);
	CHECK(!mount("check", server.path, "fuse", MS_NODEV, options), "mount: %s", strerror(errno));
	server.stalled = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	server.pid = fork();
	if (server.pid == 0)
		serve(device, server.stalled);
	close(device);
	return server;
}

/* Kills the server. All requests to the server then fail, so no thread waits for it any more. */
static void server_stop(struct server *server)
{
	kill(server->pid, SIGKILL);
	CHECK(waitpid(server->pid, NULL, 0) == server->pid, "the server");
	umount2(server->path, MNT_DETACH);
	rmdir(server->path);
}

static void *read_own_memory(void *address)
{
	int memory = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
	char byte;

	/* pread(), because a page fault would release mmap_lock while it waits for the server */
	if (pread(memory, &byte, 1, (off_t)address) == 1)
		abort();
	close(memory);
	return NULL;
}

static void *map_something(void *unused)
{
	usleep(500000);
	return mmap(unused, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static uint64_t lock_address_space(uint64_t path, uint64_t unused)
{
	int file = open((char *)path, O_RDONLY | O_CLOEXEC);
	void *page = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, file, 0);
	pthread_t reader, writer;

	(void)unused;
	CHECK(file >= 0 && page != MAP_FAILED, "%s: %s", (char *)path, strerror(errno));
	CHECK(!pthread_create(&writer, NULL, map_something, NULL), "thread");
	CHECK(!pthread_create(&reader, NULL, read_own_memory, page), "thread");
	CHECK(!pthread_join(reader, NULL) && !pthread_join(writer, NULL), "join");
	close(file);
	return 0;
}

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

/* Forks a controller that arms pages, waits until the address space is locked, and calls close(). */
static pid_t start_controller(struct target *target, uint64_t address, int armed[2], int locked[2])
{
	pid_t controller = fork();
	char byte;

	if (controller == 0) {
		struct sampler sampler = sampler_open(target->pid, 4096);

		sampler_add(&sampler, address, PAGES);
		CHECK(sampler_arm(&sampler, address, PAGES).pages_done == PAGES, "arm");
		CHECK(write(armed[1], "x", 1) == 1 && read(locked[0], &byte, 1) == 1, "pipe");
		sampler_close(&sampler);
		_exit(0);
	}
	return controller;
}

void check_locked(void)
{
	struct server server = server_start();
	struct target target;
	int armed[2], locked[2], status, waited = 0;
	uint64_t address, path;
	pid_t controller;
	double start;
	char byte;
	int fd;

	strcat(server.path, "/file");
	path = (uint64_t)strdup(server.path); /* the target, forked below, inherits the string */
	*strrchr(server.path, '/') = 0;
	target = target_start();
	address = target_call(&target, map_pages, PAGES, 1);
	CHECK(!pipe(armed) && !pipe(locked), "pipe");
	controller = start_controller(&target, address, armed, locked);
	CHECK(read(armed[0], &byte, 1) == 1, "the controller failed");
	target_begin(&target, lock_address_space, path, 0);
	for (int i = 0; i < LIMIT_S * 100 && !*server.stalled; i++)
		usleep(10000);
	CHECK(*server.stalled, "the target does not read the file");
	sleep(2); /* by then, the second thread waits for mmap_lock */

	start = seconds();
	CHECK(write(locked[1], "x", 1) == 1, "pipe");
	while (waitpid(controller, &status, WNOHANG) == 0 && waited++ < LIMIT_S * 100)
		usleep(10000);
	printf("locked: close() took %.1f s\n", seconds() - start);
	server_stop(&server);
	CHECK(waited < LIMIT_S * 100, "the target's mmap_lock blocks close()");
	CHECK(status == 0, "the controller failed");
	CHECK(target_end(&target) == 0, "the target");
	fd = device_open();
	for (int i = 0; i < LIMIT_S * 100 && attach(fd, target.pid, 4096); i++)
		usleep(10000);
	CHECK(attach(fd, target.pid, 4096) == -EBUSY, "the session has not ended");
	close(fd);
	CHECK(target_call(&target, minor_faults, address, PAGES) == 0, "pages are still armed");
	target_stop(&target);
}
