/* Makes the mistake that the command line names, or lists all of them. */
#include "mistake.h"

static struct {
	const char *name;
	void (*make)(void);
} mistakes[128];
static int count;

void list_mistake(const char *name, void (*make)(void))
{
	MUST(count < 128);
	mistakes[count].name = name;
	mistakes[count++].make = make;
}

int main(int argc, char **argv)
{
	if (argc == 1)
		for (int i = 0; i < count; i++)
			puts(mistakes[i].name);
	for (int i = 0; i < count && argc == 2; i++) {
		if (strcmp(mistakes[i].name, argv[1]) == 0) {
			mistakes[i].make();
			return 0;
		}
	}
	return argc > 1;
}
