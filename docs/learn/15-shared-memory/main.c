/* Several processes share memory. Each fills its part of an array and adds to a counter; process 0 adds the array up. */
#include <jia.h>
#include <stdio.h>
#include <stdlib.h>

enum { NUMBERS = 4000 };

int main(int argc, char **argv)
{
	jia_init(argc, argv);

	/* The same addresses in all processes, zeroed. */
	long *numbers = (long *)jia_alloc(NUMBERS * sizeof *numbers);
	long *counter = (long *)jia_alloc(sizeof *counter);
	jia_barrier();

	/* Every process writes its own part: no lock is needed. */
	for (int i = jiapid; i < NUMBERS; i += jiahosts)
		numbers[i] = i + 1;

	/* All processes write the counter: only with the lock. */
	jia_lock(0);
	*counter += 1;
	jia_unlock(0);

	/* Behind the barrier, everybody sees what was written before it. */
	jia_barrier();
	if (jiapid == 0) {
		long sum = 0;
		for (int i = 0; i < NUMBERS; i++)
			sum += numbers[i];
		printf("%ld processes wrote numbers with the sum %ld\n", *counter, sum);
		fflush(stdout);
	}
	jia_exit();
	return 0;
}
