// SPDX-License-Identifier: Apache-2.0
/*
 * Counts the instructions of page faults and of observers of page accesses.
 *
 *     costs ROUNDS PAGES plain      faults of a process without a session of the module
 *     costs ROUNDS PAGES armed      faults and module calls of a process that samples itself
 *     costs ROUNDS PAGES observers  one program under each observer
 *     costs ROUNDS PAGES hold       hold a session of the module until the end of standard input
 *
 * Prints a JSON object per line.
 */
#include "costs.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LOOPS 1000000ul

unsigned int rounds;
uint64_t pages;

/*
 * Checks that the guest runs under -icount shift=0: only then does the counter advance by two
 * for each iteration of a loop of two instructions.
 */
void require_icount(void)
{
	uint64_t begin = instructions();
	uint64_t left = LOOPS;
	uint64_t counted;

	__asm__ volatile("1: dec %0\n\tjnz 1b" : "+r"(left));
	counted = instructions() - begin;
	/* timer interrupts can add some instructions */
	CHECK(counted >= 2 * LOOPS && counted < 2 * LOOPS + 200000,
	      "%lu instructions were counted as %lu: is this guest under -icount shift=0?", 2 * LOOPS,
	      counted);
}

struct series series_new(const char *name)
{
	return (struct series){
		.name = name,
		.mean = calloc(rounds, sizeof(double)),
		.median = calloc(rounds, sizeof(double)),
	};
}

static int ascending(const void *a, const void *b)
{
	uint32_t first = *(const uint32_t *)a;
	uint32_t second = *(const uint32_t *)b;

	return (first > second) - (first < second);
}

/*
 * Returns the instructions of an access without a fault: the least of 64 measurements, because the
 * first access does fault.
 */
static uint32_t empty_cost(void)
{
	static uint32_t cost[64];
	char *page = map_fresh(1);
	uint32_t least = UINT32_MAX;

	for (int i = 0; i < 64; i++) {
		read_each(page, cost, 1);
		if (cost[0] < least)
			least = cost[0];
	}
	unmap(page, 1);
	return least;
}

void series_pages(struct series *series, uint32_t *cost, uint64_t count)
{
	static uint32_t empty;
	double sum = 0;

	if (!empty)
		empty = empty_cost();
	for (uint64_t i = 0; i < count; i++)
		sum += (double)cost[i] - empty; /* a cost can be less than `empty` */
	qsort(cost, count, sizeof(*cost), ascending);
	series->mean[series->rounds] = sum / count;
	series->median[series->rounds++] = (double)cost[count / 2] - empty;
}

void series_call(struct series *series, uint64_t counted, uint64_t count)
{
	series->mean[series->rounds] = (double)counted / count;
	series->median[series->rounds++] = (double)counted / count;
}

void series_print(const struct series *series)
{
	printf("{\"name\": \"%s\", \"mean\": [", series->name);
	for (unsigned int i = 0; i < series->rounds; i++)
		printf("%s%.2f", i ? ", " : "", series->mean[i]);
	printf("], \"median\": [");
	for (unsigned int i = 0; i < series->rounds; i++)
		printf("%s%.2f", i ? ", " : "", series->median[i]);
	printf("]}\n");
}

char *map_fresh(uint64_t count)
{
	char *memory = mmap(NULL, count * PAGE, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	CHECK(memory != MAP_FAILED, "mmap of %lu pages", count);
	CHECK(!madvise(memory, count * PAGE, MADV_NOHUGEPAGE), "madvise");
	return memory;
}

void unmap(char *memory, uint64_t count)
{
	CHECK(!munmap(memory, count * PAGE), "munmap");
}

void read_each(char *memory, uint32_t *cost, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++) {
		uint64_t begin = instructions();

		(void)*(volatile uint64_t *)(memory + i * PAGE);
		cost[i] = instructions() - begin;
	}
}

void write_each(char *memory, uint32_t *cost, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++) {
		uint64_t begin = instructions();

		*(volatile uint64_t *)(memory + i * PAGE) = i;
		cost[i] = instructions() - begin;
	}
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} verbs[] = {
		{"plain", cost_plain},
		{"armed", cost_armed},
		{"observers", cost_observers},
		{"hold", cost_hold},
	};

	if (argc == 4) {
		rounds = strtoul(argv[1], NULL, 10);
		pages = strtoul(argv[2], NULL, 10);
	}
	for (size_t i = 0; rounds && pages && i < sizeof(verbs) / sizeof(*verbs); i++) {
		if (!strcmp(argv[3], verbs[i].name)) {
			require_icount();
			verbs[i].run();
			return 0;
		}
	}
	fputs("usage: costs ROUNDS PAGES plain|armed|observers|hold\n", stderr);
	return 2;
}
