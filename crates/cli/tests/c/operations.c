/* Two connected queue pairs in one process: a SEND, a WRITE, and a SEND that nothing receives. */
#include "mistake.h"

void list_mistake(const char *name, void (*make)(void))
{
	(void)name;
	(void)make;
}

int main(void)
{
	client.rnr_retry = 1;
	connect_pair();
	post_receive(BYTES);
	post_plain(IBV_WR_SEND, 3000);
	show_completion(&client);
	show_completion(&server);
	post_plain(IBV_WR_RDMA_WRITE, 100);
	show_completion(&client);
	post_plain(IBV_WR_SEND, 8);
	show_completion(&client);
	return 0;
}
