// A data race on a plain number, which the detector must report. This proves that it works.
#include <pthread.h>

static long number;

static void *work(void *nothing)
{
	number++;
	return nothing;
}

int main(void)
{
	pthread_t threads[2];
	for (int i = 0; i < 2; i++)
		pthread_create(&threads[i], 0, work, 0);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], 0);
	return number != 2;
}
