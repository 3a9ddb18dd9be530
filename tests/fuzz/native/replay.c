// SPDX-License-Identifier: Apache-2.0
/* Runs a fuzz target on the named files, without a fuzzer: any compiler can build this program. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

extern int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay(const char *path)
{
	FILE *file = fopen(path, "rb");
	uint8_t *data;
	long size;

	if (!file || fseek(file, 0, SEEK_END) || (size = ftell(file)) < 0 || fseek(file, 0, SEEK_SET)) {
		perror(path);
		return 1;
	}
	/* A buffer of the input's exact size, so that the sanitizer detects reads past the input's end. */
	data = malloc((size_t)size);
	if (size && (!data || fread(data, (size_t)size, 1, file) != 1)) {
		perror(path);
		return 1;
	}
	fclose(file);
	fprintf(stderr, "%s\n", path); /* after a failure, the last path names the failing input */
	LLVMFuzzerTestOneInput(data, (size_t)size);
	free(data);
	return 0;
}

int main(int count, char **paths)
{
	int failed = 0;

	for (int i = 1; i < count; i++)
		failed |= replay(paths[i]);
	return failed;
}
